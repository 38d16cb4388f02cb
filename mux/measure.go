package mux

import (
	"context"
	"errors"
)

// CountSessions opens sessions until the server refuses one, or most are open, and closes them again. It returns how
// many it opened and whether there was a refusal; without one the server may allow more. The server also counts
// sessions that are in use, the result does not. The connection's own budget stays as it is.
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
