package mux

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Ping asks the peer for an answer and returns how long that took. When ctx ends first it returns its cause.
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	start, answered := time.Now(), make(chan time.Duration, 1)
	if !c.spawn(func() {
		c.ping()
		answered <- time.Since(start)
	}) {
		return 0, c.ended("ping")
	}
	select {
	case took := <-answered:
		if err := c.alive("ping"); err != nil {
			return 0, err
		}
		return took, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("ping: %w", context.Cause(ctx))
	}
}

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
		s.channel = ch
		all = append(all, s)
	}
	return len(all), false, nil
}
