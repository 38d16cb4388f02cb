package whole

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"sync"
)

// Newer is the part of a run that a newer run of its Series with another Version ends.
type Newer uint8

// The values of Newer.
const (
	// EndUnlessStarted ends the run, unless a job that is not Interruptible has started.
	EndUnlessStarted Newer = iota
	// EndInterruptible ends the jobs that are Interruptible, also those that have not started.
	EndInterruptible
	// EndNothing ends nothing.
	EndNothing
)

// redundancy is the state of a run that a newer one may end. The zero value is a run without a Series.
type redundancy struct {
	interruptible context.Context // ends when jobs that are Interruptible end; nil if there is no Series

	mu      sync.Mutex // guards the following
	started bool       // a job that is not Interruptible has started
	over    bool       // a newer run has ended this one
}

// series tells older runs of the series of p that this one has come, and watches for newer ones. If ctx ends because of
// one, its cause is ErrNewerCommit. The caller calls leave.
func (r *runner) series(ctx context.Context, p *Pipeline) (own context.Context, leave func(), err error) {
	if p.Series == "" || r.cfg.StateDir == "" {
		return ctx, func() {}, nil
	}
	t := &turn{}
	if t.state, err = r.lockFile("series " + r.cfg.Name + " " + p.Series); err != nil {
		return ctx, nil, err
	}
	name, _ := hex.DecodeString(nameOf(p.Version)) // cannot fail: it is made by EncodeToString
	mark := binary.LittleEndian.Uint64(name)
	if err := t.join(ctx, func(now *turns) {
		if now.Mark != mark {
			now.Mark, now.Cut = mark, now.Newest
		}
	}); err != nil {
		t.leave()
		return ctx, nil, err
	}
	own, stop := context.WithCancelCause(ctx)
	interruptible, end := context.WithCancelCause(context.WithoutCancel(ctx))
	r.redundant.interruptible = interruptible //nolint:fatcontext // it is the run's, and set once
	unwatch := t.watch(own, func() {
		switch {
		case p.Newer == EndInterruptible:
			end(ErrNewerCommit)
		case p.Newer == EndUnlessStarted && r.redundant.end():
			stop(ErrNewerCommit)
		}
	})
	return own, func() {
		stop(nil)
		end(nil)
		unwatch()
		t.leave()
	}, nil
}

// end reports whether the run ends because of a newer one. Then no other job that is not Interruptible starts.
func (r *redundancy) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = !r.started
	return r.over
}

// start begins an attempt of a job. The context that it returns ends with ErrNewerCommit when the job shall end.
func (r *redundancy) start(ctx context.Context, job *Job) (own context.Context, end func()) {
	if r.interruptible == nil {
		return ctx, func() {}
	}
	own, stop := context.WithCancelCause(ctx)
	if job.Interruptible {
		unhook := context.AfterFunc(r.interruptible, func() { stop(context.Cause(r.interruptible)) })
		return own, func() {
			unhook()
			stop(nil)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started = true; r.over {
		stop(ErrNewerCommit)
	}
	return own, func() { stop(nil) }
}
