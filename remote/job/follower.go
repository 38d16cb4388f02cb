package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// Stream is one of a job's streams of output.
type Stream int

// The streams.
const (
	// Stdout and Stderr are the output of the steps, and nothing else.
	Stdout Stream = iota
	Stderr
	// Merged is both, in the order they were written, with a line before each step's output that names the step. Only a
	// job with Spec.Merged has it.
	Merged
)

var streamNames = [...]string{Stdout: "stdout", Stderr: "stderr", Merged: "merged"}

func (s Stream) String() string { return streamNames[s] }

// Follower reads one job. It is safe for concurrent use. After the store has removed the job, the Follower can read on
// for a while (Config.Linger); then reads return ErrNotFound.
type Follower struct {
	store *Store
	job   *record
	close sync.Once
}

// Event returns change number n, from 0, of the job's steps. It waits for the change until the job has ended (io.EOF)
// or ctx ends (its cause).
func (f *Follower) Event(ctx context.Context, n int) (engine.StepResult, error) {
	var over bool
	for {
		f.job.mu.Lock()
		changed, events := f.job.changed, f.job.events
		f.job.mu.Unlock()
		switch {
		case n < len(events):
			return events[n].result, nil
		case over:
			return engine.StepResult{}, io.EOF
		}
		select {
		case <-changed:
		case <-f.job.done:
			over = true
		case <-ctx.Done():
			return engine.StepResult{}, context.Cause(ctx)
		}
	}
}

// Past returns change number n, from 0, if it has happened, and how many bytes of stdout and stderr there were then.
// Those bytes came before the change. The reverse may not hold: masking delays the end of a text that may begin a
// secret.
func (f *Follower) Past(n int) (result engine.StepResult, stdout, stderr int64, ok bool) {
	f.job.mu.Lock()
	defer f.job.mu.Unlock()
	if n >= len(f.job.events) {
		return result, 0, 0, false
	}
	e := f.job.events[n]
	return e.result, e.at[Stdout], e.at[Stderr], true
}

// Stat returns the job's present state.
func (f *Follower) Stat() Stat {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	return f.job.statLocked()
}

// ReadAt reads from a stream at offset into p, at least one byte. It waits for that byte until the stream has ended
// (io.EOF) or ctx ends (its cause). For an offset that is negative, or beyond the end of a stream that has ended, the
// error is [joblog.ErrOffset]; for Merged of a job without that stream it is ErrNotMerged.
func (f *Follower) ReadAt(ctx context.Context, stream Stream, p []byte, offset int64) (int, error) {
	if int(stream) >= len(f.job.logs) {
		return 0, ErrNotMerged
	}
	n, err := f.job.logs[stream].ReadAt(ctx, p, offset)
	if errors.Is(err, os.ErrClosed) {
		return n, fmt.Errorf("read %s: %w", stream, ErrNotFound)
	}
	return n, err
}

// Wait waits for the job's end and returns its final state. If ctx ends first the error is its cause.
func (f *Follower) Wait(ctx context.Context) (Stat, engine.Result, error) {
	select {
	case <-f.job.done:
	case <-ctx.Done():
		return Stat{}, engine.Result{}, context.Cause(ctx)
	}
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	return f.job.statLocked(), f.job.result, nil
}

// Close gives up the Follower. It is idempotent.
func (f *Follower) Close() {
	f.close.Do(func() { f.store.unfollow(f.job) })
}
