package mux

import (
	"context"
	"errors"
)

// CountSessions opens sessions until the server refuses one or most are open, then closes them. It returns how many
// it opened and whether the server refused one; if it did not, the server may allow more. Sessions that are in use
// count against the server's limit but not in the result. The connection's own budget does not change.
func (c *Conn) CountSessions(ctx context.Context, most int) (opened int, refused bool, err error) {
	var all []*sshChannel
	defer func() { closeSessions(all) }()
	tally := &budget{} // without a limit
	for len(all) < most {
		tally.tryAcquire(1)
		ch, err := c.open(ctx, "open session", "session", nil, tally)
		if isRefusal(err) || errors.Is(err, ErrForbidden) {
			return len(all), true, nil
		}
		if err != nil {
			return len(all), false, err
		}
		all = append(all, ch)
	}
	return len(all), false, nil
}
