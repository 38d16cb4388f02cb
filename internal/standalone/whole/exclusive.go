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

// The causes with which a job or a run ends because of a newer one: of its group, or of its series.
var (
	errNewerJob = errors.New("a newer job of its concurrency group took its place")
	errNewerRun = errors.New("a newer run of its concurrency group took its place")
	// ErrNewerCommit is also for an Executor, whose error ends a job because of a newer run.
	ErrNewerCommit = errors.New("a newer run of another commit made it redundant")
)

// ErrCancelled is the error of Config.Enter for a job or a run that was cancelled before.
var ErrCancelled = errors.New("it was cancelled before")

// newerIn returns the one of them in err, or nil.
func newerIn(err error) error {
	for _, cause := range []error{errNewerJob, errNewerRun, ErrNewerCommit} {
		if errors.Is(err, cause) {
			return cause
		}
	}
	return nil
}

// Member is a job or a run that enters a group.
type Member struct {
	Group string
	// Job is the name of the job. It is empty for a run.
	Job string
	// Cancels says that the member that runs shall stop. Keeps says that the member goes on when the run is cancelled.
	Cancels, Keeps bool
	// Newer is the error for a member whose place a newer one has taken.
	Newer error
}

// turns is the state of a group, in a file that is locked while it is read or written. Each member that comes gets the
// next number. The member that runs holds the lock of another file, and the newest of the others waits for that.
type turns struct {
	Newest uint64 // the number of the newest member
	Cut    uint64 // members with this number or a lower one stop, also the one that runs
	Mark   uint64 // of the newest member
}

// turnsSize is the size of turns in the file.
const turnsSize = 24

// turn is the turn of a job or of a run in its group. The owner calls leave.
type turn struct {
	number uint64
	state  *os.File // the file of turns
	holds  *os.File // the one whose lock the member that runs holds; nil if all members run at once
}

// askEvery is how often a member that runs looks whether it shall stop.
const askEvery = 50 * time.Millisecond

// enter waits until no other member of the group runs, also in other runs on this machine. The context that it returns
// ends with the cause newer if a newer member stops this one. If a newer one comes while it waits, enter returns newer.
// Else the caller calls leave. tell gets a line if it has to wait.
func (r *runner) enter(
	ctx context.Context, m Member, tell func(string),
) (own context.Context, leave func(), err error) {
	name, newer := m.Group, m.Newer
	if r.cfg.Enter != nil {
		return r.cfg.Enter(ctx, m, tell)
	}
	t := &turn{}
	if t.holds, err = r.lockFile("group " + name); err != nil {
		return ctx, nil, err
	}
	if t.state, err = r.lockFile("turns " + name); err != nil {
		t.holds.Close()
		return ctx, nil, err
	}
	arrive := func(now *turns) {
		if m.Cancels {
			now.Cut = now.Newest
		}
	}
	if err = t.join(ctx, arrive); err == nil {
		told := false
		err = pause.Until(ctx, func() (bool, error) {
			is, err := t.try(ctx, newer)
			if !is && err == nil && !told {
				told = true
				tell(fmt.Sprintf("waits for the concurrency group %q, which another run or job on this machine has", name))
			}
			return is, err
		})
	}
	if err != nil {
		t.leave()
		return ctx, nil, err
	}
	own, stop := context.WithCancelCause(ctx)
	end := t.watch(own, func() { stop(newer) })
	return own, func() {
		stop(nil)
		end()
		t.leave()
	}, nil
}

// join takes the next number. arrive may change the state before that.
func (t *turn) join(ctx context.Context, arrive func(now *turns)) error {
	return t.locked(ctx, func(now *turns) error {
		arrive(now)
		now.Newest++
		t.number = now.Newest
		var text [turnsSize]byte
		for i, n := range []uint64{now.Newest, now.Cut, now.Mark} {
			binary.LittleEndian.PutUint64(text[8*i:], n)
		}
		_, err := t.state.WriteAt(text[:], 0)
		return err
	})
}

// watch calls do, once, when the member shall stop. The function that it returns ends that, and waits for it.
func (t *turn) watch(ctx context.Context, do func()) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for pause.For(ctx, askEvery) == nil {
			if now, err := t.read(ctx); err == nil && now.Cut >= t.number {
				do()
				return
			}
		}
	}()
	return func() {
		stop()
		<-watched
	}
}

// try takes the lock of the member that runs. If a newer member has come, it returns the error newer.
func (t *turn) try(ctx context.Context, newer error) (bool, error) {
	err := filelock.Try(t.holds)
	taken := errors.Is(err, filelock.ErrTaken)
	if err != nil && !taken {
		return false, err
	}
	now, err := t.read(ctx)
	if err == nil && now.Newest > t.number {
		err = newer
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
	var text [turnsSize]byte // of a new group it is empty
	if _, err := t.state.ReadAt(text[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(text[8*i:]) }
	return do(&turns{at(0), at(1), at(2)})
}

func (t *turn) leave() {
	if t.holds != nil {
		filelock.Release(t.holds)
	}
	t.state.Close()
}
