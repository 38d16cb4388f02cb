package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stepmux/stepmux/remote/job"
)

// ErrStuck is the error of a job that was aborted while a writer of its output took nothing. The writer may still be in
// use.
var ErrStuck = errors.New("the job's output cannot be written: its reader takes nothing")

// stuckLimit is how long the output of a job may take to be written after abort has ended.
const stuckLimit = time.Second

// show shows the changes of a job's steps and their output, in the order of their occurrence, until the job has ended.
// It ends early with the error of a writer or, if abort has ended and a writer does not return, with ErrStuck.
func show(ctx, abort context.Context, f *job.Follower, cfg Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &shower{follower: f, cfg: cfg, to: [2]io.Writer{job.Stdout: cfg.Stdout, job.Stderr: cfg.Stderr}}
	var wg sync.WaitGroup
	for _, await := range []func(context.Context) error{s.awaitEvent, s.awaitStdout, s.awaitStderr} {
		wg.Go(func() {
			for {
				err := await(ctx)
				if errors.Is(err, io.EOF) {
					return
				}
				if err == nil {
					err = s.show(ctx)
				}
				if err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	shown := make(chan struct{})
	go func() { // ends with the writers
		wg.Wait()
		close(shown)
	}()
	select {
	case <-shown:
		return context.Cause(ctx)
	case <-abort.Done():
	}
	timer := time.NewTimer(stuckLimit)
	defer timer.Stop()
	select {
	case <-shown:
		return context.Cause(ctx)
	case <-timer.C:
		return ErrStuck
	}
}

// shower shows a job. Each of its three goroutines waits for one kind of change, and then shows all changes.
type shower struct {
	follower *job.Follower
	cfg      Config
	to       [2]io.Writer

	mu     sync.Mutex // guards the following, and the writers
	events int        // shown
	shown  [2]int64   // bytes of each stream
	piece  [32 << 10]byte
}

func (s *shower) awaitEvent(ctx context.Context) error {
	s.mu.Lock()
	n := s.events
	s.mu.Unlock()
	_, err := s.follower.Event(ctx, n)
	return err
}

func (s *shower) awaitStdout(ctx context.Context) error { return s.await(ctx, job.Stdout) }
func (s *shower) awaitStderr(ctx context.Context) error { return s.await(ctx, job.Stderr) }

// await waits until a stream has more bytes than were shown.
func (s *shower) await(ctx context.Context, stream job.Stream) error {
	s.mu.Lock()
	offset := s.shown[stream]
	s.mu.Unlock()
	var one [1]byte
	n, err := s.follower.ReadAt(ctx, stream, one[:], offset)
	if n > 0 {
		return nil
	}
	return err
}

// show shows all changes since the last call.
func (s *shower) show(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		// Output that existed before the next event is looked for belongs before that event.
		stat := s.follower.Stat()
		to := [2]int64{job.Stdout: stat.Stdout, job.Stderr: stat.Stderr}
		event, stdout, stderr, isEvent := s.follower.Past(s.events)
		if isEvent {
			to = [2]int64{job.Stdout: stdout, job.Stderr: stderr}
		}
		for stream := range s.to {
			if err := s.copyLocked(ctx, job.Stream(stream), to[stream]); err != nil {
				return err
			}
		}
		if !isEvent {
			return nil
		}
		s.events++
		s.cfg.Observe(event)
	}
}

// copyLocked shows a stream up to the offset to. The stream has these bytes already.
func (s *shower) copyLocked(ctx context.Context, stream job.Stream, to int64) error {
	for s.shown[stream] < to {
		piece := s.piece[:min(int64(len(s.piece)), to-s.shown[stream])]
		n, err := s.follower.ReadAt(ctx, stream, piece, s.shown[stream])
		if n > 0 {
			s.shown[stream] += int64(n)
			if _, err := s.to[stream].Write(piece[:n]); err != nil {
				return fmt.Errorf("write the job's %s: %w", stream, err)
			}
		}
		if ctx.Err() != nil { // after ErrStuck
			return context.Cause(ctx)
		}
		if err != nil && n == 0 {
			return err
		}
	}
	return nil
}
