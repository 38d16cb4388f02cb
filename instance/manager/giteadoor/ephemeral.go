package giteadoor

import (
	"context"
	"encoding/json"
	"errors"
	"net"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
)

// enter returns a runner that the server knows. An ephemeral one is made only when there is a slot for its task, which
// enter returns: no slot is held while the server does not answer.
func (d *Door) enter(ctx context.Context) (runner Registration, rooms []jobdoor.Room) {
	d.Repeat(ctx, "register", func() (err error) {
		if d.cfg.Ephemeral {
			if rooms = d.Reserve(ctx, 1); len(rooms) == 0 {
				return errNoSlot
			}
		}
		if runner, err = d.register(ctx); err != nil {
			jobdoor.Release(rooms)
			rooms = nil
		}
		return err
	})
	return runner, rooms
}

// leave keeps an ephemeral runner that has had no task, for the next door. While a door has it, it is not kept: after a
// kill it may have a task of which nobody knows, and the server would give it no other.
func (d *Door) leave(ctx context.Context, runner Registration) {
	keeping, stop := jobdoor.Beyond(ctx)
	defer stop()
	text, err := json.Marshal(runner)
	if err == nil {
		err = d.Host().Keep(keeping, d.Key(kindRunner), text)
	}
	if err != nil {
		d.Host().Logger.Warn("an ephemeral runner without a task stays at the server", "runner", runner.Name, "error", err)
	}
}

// mayBeLost reports whether the server may have answered a call that has failed.
func mayBeLost(err error) bool {
	if told, ok := errors.AsType[*CallError](err); ok {
		return told.Code == "unknown" // of a proxy before it
	}
	at, ok := errors.AsType[*net.OpError](err)
	return !ok || at.Op != "dial"
}

// errNoSlot says that no slot could be reserved.
var errNoSlot = errors.New("there is no slot for its task")
