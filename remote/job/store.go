package job

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// Store holds the jobs. It has one goroutine for each running job, and one that removes jobs. Shutdown waits for all of
// them. It is safe for concurrent use.
type Store struct {
	cfg Config
	dir string
	// run runs a job's steps. Tests of timing replace it.
	run func(context.Context, *engine.Runner, engine.Place) engine.Result

	stop      context.CancelFunc // ends the collector
	stopped   context.Context    // ends to end the collector
	collector sync.WaitGroup
	wake      chan struct{} // has room for one; wakes the collector

	mu       sync.Mutex // guards the following, and some fields of records
	jobs     map[string]*record
	finished []*record // jobs that have ended, oldest first
	kept     int64     // bytes of output of finished jobs
	removed  []*record // no longer in jobs, but perhaps followed
	serial   int       // number of the last directory
	shutdown bool
}

// New returns a store. The caller ends it with Close, or with Shutdown if the process ends then too.
func New(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open job store: %w", err)
	}
	s := &Store{
		cfg:  cfg,
		dir:  filepath.Join(cfg.Dir, "jobs"),
		run:  func(ctx context.Context, r *engine.Runner, p engine.Place) engine.Result { return r.Run(ctx, p) },
		wake: make(chan struct{}, 1),
		jobs: map[string]*record{},
	}
	if err := rmtree.Remove(s.dir); err != nil {
		return nil, fmt.Errorf("open job store: %w", err)
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("open job store: %w", err)
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	s.collector.Go(s.collect)
	return s, nil
}

// Create starts a job. If there is already one with its ID and Digest it does nothing. It does not wait for the job: a
// failure of this machine that keeps the job from running is the job's failure. The error is ErrExists, ErrFull or
// ErrShutdown.
func (s *Store) Create(spec Spec) error {
	s.mu.Lock()
	if j := s.jobs[spec.ID]; j != nil {
		defer s.mu.Unlock()
		if j.digest != spec.Digest {
			return ErrExists
		}
		return nil
	}
	if s.shutdown {
		s.mu.Unlock()
		return ErrShutdown
	}
	full := len(s.jobs) >= s.cfg.MaxJobs
	if full {
		if len(s.finished) == 0 {
			s.mu.Unlock()
			return ErrFull
		}
		s.removeLocked(s.finished[0])
	}
	s.serial++
	j := newRecord(spec, filepath.Join(s.dir, fmt.Sprintf("%x-%d", sha256.Sum256([]byte(spec.ID)), s.serial)))
	j.grace = cmp.Or(spec.Grace, s.cfg.Grace)
	runner := s.newRunner(spec, j)
	j.runner.Store(runner)
	s.jobs[spec.ID] = j
	go s.execute(j, spec, runner)
	s.mu.Unlock()
	if full {
		s.wakeCollector()
	}
	return nil
}

// newRunner returns the engine's runner for j, and prestarts the shim of its first process.
func (s *Store) newRunner(spec Spec, j *record) *engine.Runner {
	cfg := spec.Config
	cfg.Fetcher = s.cfg.Fetcher
	cfg.Masker = masker{&j.output.secrets}
	cfg.OrphanDir = s.cfg.OrphanDir
	cfg.Timeout = min(cmp.Or(cfg.Timeout, s.cfg.MaxRunTime), s.cfg.MaxRunTime)
	cfg.Grace = j.grace
	cfg.Observe = j.observe
	cfg.Record = s.record(spec, j)
	if starter := s.cfg.Starter; starter != nil {
		cfg.Start = starter.Start
		starter.Prepare() // while the job's files are made
	}
	return engine.New(cfg)
}

// Cancel stops a running job, as [engine.Runner.Stop] does, with the job's grace or, by force, with SIGKILL at once. It
// removes a job that has ended. It does not wait, and ignores an id without a job.
func (s *Store) Cancel(id string, force bool) { s.cancel(id, force, false) }

// Discard stops a running job, as Cancel does, and removes it when it has ended.
func (s *Store) Discard(id string) { s.cancel(id, false, true) }

// Stop stops a running job, as Cancel does. It keeps a job that has ended.
func (s *Store) Stop(id string) {
	s.mu.Lock()
	j := s.jobs[id]
	s.mu.Unlock()
	if j != nil {
		j.stop("the job was cancelled", j.grace)
	}
}

// Kill kills a job that runs, with all its processes. One that has ended stays.
func (s *Store) Kill(id string) {
	s.mu.Lock()
	j := s.jobs[id]
	s.mu.Unlock()
	if j != nil {
		j.kill(errors.New("the job was killed"))
	}
}

func (s *Store) cancel(id string, force, discard bool) {
	s.mu.Lock()
	j := s.jobs[id]
	ended := j != nil && j.state != Running
	followed := j != nil && j.followers > 0
	switch {
	case ended:
		s.removeLocked(j)
	case j != nil:
		j.discard = j.discard || discard
	}
	s.mu.Unlock()
	switch {
	case j == nil:
	case ended && !followed:
		j.remove() // waits for the collector if that is removing it
		s.wakeCollector()
	case ended:
		s.wakeCollector() // it removes the job after its last follower, or after Linger
	case force:
		j.kill(errors.New("the job was killed"))
	default:
		j.stop("the job was cancelled", j.grace)
	}
}

// List returns the jobs with the given ids, or all jobs, sorted by their start. It leaves out ids without a job.
func (s *Store) List(ids ...string) []Stat {
	s.mu.Lock()
	var found []*record
	if len(ids) == 0 {
		for _, j := range s.jobs {
			found = append(found, j)
		}
	}
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if j := s.jobs[id]; j != nil && !seen[id] {
			seen[id] = true
			found = append(found, j)
		}
	}
	stats := make([]Stat, len(found))
	for i, j := range found {
		stats[i] = j.statLocked()
	}
	s.mu.Unlock()
	slices.SortFunc(stats, func(a, b Stat) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
	})
	return stats
}

// Follow returns a Follower of the job id. The caller must close it.
func (s *Store) Follow(id string) (*Follower, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[id]
	if j == nil {
		return nil, ErrNotFound
	}
	j.followers++
	return &Follower{store: s, job: j}, nil
}
