package mux

import (
	"context"
	"errors"
)

// CountSessions opens sessions until the server refuses one, or most are open, and closes them again. It returns how
// many it opened and whether there was a refusal; without one the server may allow more. The server also counts
// sessions that are in use, the result does not. The connection's own budget stays as it is.
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
