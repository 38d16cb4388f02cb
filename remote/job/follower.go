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

// Stream names one of the streams of a job's output.
type Stream int

// The streams.
const (
	// Stdout and Stderr are the output of the steps, and nothing else.
	Stdout Stream = iota
	Stderr
	// Merged is both in the order in which they were written, with a line before each step's output that names the
	// step. Only jobs with Spec.Merged have it.
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

// Event returns change number n, from 0, of the job's steps. It waits for that change. The error is io.EOF if the job
// has ended without it, or the cause of ctx if that ends first.
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

// Past returns change number n, from 0, if it has happened, and the lengths of stdout and stderr at that time. All of
// these bytes were written before the change. Later bytes may also be older than it, because masking delays the end of
// a text that may begin a secret.
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

// ReadAt reads from a stream at offset into p, at least one byte. It waits for that byte. The error is io.EOF at the
// end of the stream, [joblog.ErrOffset] if the offset is negative or beyond that end, ErrNotMerged for Merged of a job
// without that stream, or the cause of ctx if that ends first.
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

// Wait waits for the job's end and returns its final state. If ctx ends first, the error is its cause.
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

// Close ends the Follower, so that a removed job's files can be deleted. It is idempotent.
func (f *Follower) Close() {
	f.close.Do(func() { f.store.unfollow(f.job) })
}
