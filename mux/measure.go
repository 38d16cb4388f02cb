package mux

import (
	"context"
	"errors"
)

// CountSessions opens sessions until the server refuses one, or most are open, and closes them again. It
// returns how many it opened and whether there was a refusal. Sessions that are in use count for the
// server, and are not in the result; a server that does not refuse most would allow more. Nothing is learned
// of it for the connection's budget.
func (c *Conn) CountSessions(ctx context.Context, most int) (opened int, refused bool, err error) {
	var all []*session
	defer func() { closeSessions(all) }()
	for len(all) < most {
		s := &session{}
		ch, err := c.open(ctx, openSpec{
			op:      "open session",
			kind:    "session",
			request: s.request,
			opened:  func() {},
			closed:  func(bool) {},
		})
		if isRefusal(err) || errors.Is(err, ErrForbidden) {
			return len(all), true, nil
		}
		if err != nil {
			return len(all), false, err
		}
		s.sshChannel = ch
		all = append(all, s)
	}
	return len(all), false, nil
}
