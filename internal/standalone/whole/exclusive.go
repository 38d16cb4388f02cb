package whole

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/pause"
)

// errReplaced is the cause with which a job or a run ends when a newer one of its group takes its place.
var errReplaced = errors.New("a newer job of its concurrency group took its place")

// turns is the state of a group, in a file that is locked while somebody reads or writes it. Each member that comes gets
// the next number. The member that runs holds the lock of another file, and the newest of the others waits for that.
type turns struct {
	Newest uint64 // the number of the newest member
	Cut    uint64 // members with this number or a lower one stop, also the one that runs
}

// turn is the turn of a job or of a run in its group. The owner calls leave.
type turn struct {
	number       uint64
	state, holds *os.File // the file of turns, and the one whose lock the member that runs holds
}

// askEvery is how often a member that runs looks whether it shall stop.
const askEvery = 50 * time.Millisecond

// enter waits until no other member of the group runs, also in other runs on this machine. The context that it returns
// ends with errReplaced if a newer member stops this one. If a newer one comes while it waits, enter returns errReplaced.
// Else the caller calls leave. tell gets a line if it has to wait.
func (r *runner) enter(
	ctx context.Context, name string, cancels bool, tell func(string),
) (own context.Context, leave func(), err error) {
	t := &turn{}
	if t.holds, err = r.lockFile("group " + name); err != nil {
		return ctx, nil, err
	}
	if t.state, err = r.lockFile("turns " + name); err != nil {
		t.holds.Close()
		return ctx, nil, err
	}
	if err = t.join(ctx, cancels); err == nil {
		told := false
		err = pause.Until(ctx, func() (bool, error) {
			is, err := t.try(ctx)
			if !is && err == nil && !told {
				told = true
				tell(fmt.Sprintf("waits for the concurrency group %.64q, which another one on this machine has", name))
			}
			return is, err
		})
	}
	if err != nil {
		t.leave()
		return ctx, nil, err
	}
	own, stop := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for pause.For(own, askEvery) == nil {
			if now, err := t.read(own); err == nil && now.Cut >= t.number {
				stop(errReplaced)
			}
		}
	}()
	return own, func() {
		stop(nil)
		<-watched
		t.leave()
	}, nil
}

// join takes the next number.
func (t *turn) join(ctx context.Context, cancels bool) error {
	return t.locked(ctx, func(now *turns) error {
		if cancels {
			now.Cut = now.Newest
		}
		now.Newest++
		t.number = now.Newest
		var text [16]byte
		binary.LittleEndian.PutUint64(text[:8], now.Newest)
		binary.LittleEndian.PutUint64(text[8:], now.Cut)
		_, err := t.state.WriteAt(text[:], 0)
		return err
	})
}

// try takes the lock of the member that runs, unless a newer member has come.
func (t *turn) try(ctx context.Context) (bool, error) {
	err := filelock.Try(t.holds)
	taken := errors.Is(err, filelock.ErrTaken)
	if err != nil && !taken {
		return false, err
	}
	now, err := t.read(ctx)
	if err == nil && now.Newest > t.number {
		err = errReplaced
	}
	return !taken, err
}

func (t *turn) read(ctx context.Context) (now turns, err error) {
	err = t.locked(ctx, func(all *turns) error {
		now = *all
		return nil
	})
	return now, err
}

// locked calls do with the state of the group, which nobody else changes meanwhile.
func (t *turn) locked(ctx context.Context, do func(*turns) error) error {
	if err := filelock.Wait(ctx, t.state); err != nil {
		return err
	}
	defer filelock.Unlock(t.state)
	var text [16]byte // of a new group it is empty
	if _, err := t.state.ReadAt(text[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return do(&turns{binary.LittleEndian.Uint64(text[:8]), binary.LittleEndian.Uint64(text[8:])})
}

func (t *turn) leave() {
	filelock.Release(t.holds)
	t.state.Close()
}
