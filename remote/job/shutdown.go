package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stepmux/stepmux/internal/rmtree"
)

// killTimeout bounds the wait for a killed job: for the end of its processes and for the removal of its files.
const killTimeout = 15 * time.Second

// Shutdown ends all jobs: it sends SIGTERM and, after grace or when ctx ends, SIGKILL to all remaining processes. It
// waits for their end, at most killTimeout after SIGKILL. From its call on, the store refuses new jobs and keeps all
// ended ones. Jobs can be followed and listed until Close. Shutdown may be called again: the shortest grace counts. The
// error says how many jobs still run.
func (s *Store) Shutdown(ctx context.Context, grace time.Duration) error {
	s.mu.Lock()
	s.shutdown = true
	running := slices.Clone(s.closing)
	for _, j := range s.jobs {
		if j.state == Running {
			running = append(running, j)
		}
	}
	s.mu.Unlock()
	s.collector.Stop()
	s.collecting.Wait()

	for _, j := range running {
		j.stop(ErrShutdown.Error(), grace)
	}
	soft, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	left := awaitAll(soft, running)
	for _, j := range left {
		j.kill(ErrShutdown)
	}
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if left = awaitAll(hard, left); len(left) > 0 {
		return fmt.Errorf("end jobs: %d of %d still run %v after SIGKILL", len(left), len(running), killTimeout)
	}
	return nil
}

// awaitAll waits until all jobs have ended or ctx ends, and returns the jobs that still run.
func awaitAll(ctx context.Context, jobs []*record) (left []*record) {
	for _, j := range jobs {
		select {
		case <-j.done:
		case <-ctx.Done():
			select {
			case <-j.done:
			default:
				left = append(left, j)
			}
		}
	}
	return left
}

// Close calls Shutdown without grace, and then removes all jobs: reads of followers fail. It waits for both. It is
// idempotent.
func (s *Store) Close() error {
	err := s.Shutdown(context.Background(), 0)
	s.mu.Lock()
	gone := s.removed
	s.removed = nil
	for _, j := range s.jobs {
		if j.state != Running {
			gone = append(gone, j)
		}
	}
	clear(s.jobs)
	s.finished, s.kept = nil, 0
	s.mu.Unlock()
	for _, j := range gone {
		j.remove()
	}
	if err != nil {
		return err
	}
	s.opening.Lock()
	home := s.home
	s.home = nil
	s.opening.Unlock()
	if home == nil { // closed before
		return nil
	}
	defer home.Close()
	s.reuse.close()
	return errors.Join(rmtree.RemoveOpen(context.Background(), home), rmtree.Remove(s.dir))
}
