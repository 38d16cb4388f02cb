package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// Stream is one of a job's streams of output.
type Stream int

// The streams.
const (
	// Stdout and Stderr are what the steps write, and nothing else.
	Stdout Stream = iota
	Stderr
	// Merged is both, in the order they were written, with a line before each step's output that names the
	// step. Only jobs have it that were asked to (Spec.Merged).
	Merged
)

var streamNames = [...]string{Stdout: "stdout", Stderr: "stderr", Merged: "merged"}

func (s Stream) String() string { return streamNames[s] }

// Follower reads one job. Its methods may be called from any goroutine. When the store has removed the
// job it can be read on for a while; then reads are ErrNotFound.
type Follower struct {
	store *Store
	job   *record
	close sync.Once
}

// Event returns change number n, from 0, of the job's steps. While there is none it waits, until the
// job has ended (io.EOF) or ctx ends (its cause).
func (f *Follower) Event(ctx context.Context, n int) (engine.StepResult, error) {
	e, err := f.job.event(ctx, n)
	return e.result, err
}

// Past returns change number n, from 0, if it has come, and how many bytes of stdout and stderr there were then:
// these are of what was before it. The end of a text that may be the beginning of a secret comes later.
func (f *Follower) Past(n int) (result engine.StepResult, stdout, stderr int64, ok bool) {
	f.job.mu.Lock()
	defer f.job.mu.Unlock()
	if n >= len(f.job.events) {
		return result, 0, 0, false
	}
	e := f.job.events[n]
	return e.result, e.at[Stdout], e.at[Stderr], true
}

// Stat returns what is known of the job now.
func (f *Follower) Stat() Stat {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	return f.job.statLocked()
}

// ReadAt reads from a stream at offset into p, at least one byte. While there is none it waits, until
// the stream has ended (io.EOF) or ctx ends (its cause). An offset that is negative, or beyond the end of
// a stream that has ended, is [joblog.ErrOffset]. A stream the job does not have is ErrNotMerged.
func (f *Follower) ReadAt(ctx context.Context, stream Stream, p []byte, offset int64) (int, error) {
	n, err := f.job.readAt(ctx, stream, p, offset)
	if errors.Is(err, os.ErrClosed) {
		return n, fmt.Errorf("read %s: %w", stream, ErrNotFound)
	}
	return n, err
}

// Wait waits for the job's end and returns how it ended, or ctx's cause if that ends first.
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
