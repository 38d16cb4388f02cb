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

// Store holds the jobs. Its goroutines are one for each job that runs, and one that forgets jobs.
// Shutdown waits for both. It is safe for concurrent use.
type Store struct {
	cfg Config
	dir string
	// run runs a job's steps. Tests of what time does to jobs put something faster here.
	run func(context.Context, *engine.Runner, engine.Place) engine.Result

	stop      context.CancelFunc // ends the collector
	stopped   context.Context    // over once it shall end
	collector sync.WaitGroup
	wake      chan struct{} // holds one: there is something new to collect

	mu       sync.Mutex // guards the following, and the fields of records that say so
	jobs     map[string]*record
	finished []*record // those of jobs that have ended, in the order they did
	kept     int64     // bytes of output of those
	removed  []*record // no longer in jobs, but followed
	serial   int       // of the last directory
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

// Create starts a job, or finds it: if there is one with its ID and Digest nothing happens. It does not
// wait for anything of the job. What keeps the job from running, on this machine, fails the job.
// Otherwise the error is ErrExists, ErrFull or ErrShutdown.
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
	runner := s.newRunner(spec, j)
	j.runner.Store(runner)
	j.grace = cmp.Or(spec.Grace, s.cfg.Grace)
	s.jobs[spec.ID] = j
	go s.execute(j, spec, runner)
	s.mu.Unlock()
	if full {
		s.wakeCollector()
	}
	return nil
}

// newRunner returns what runs the steps of j, and lets the first of them start soon.
func (s *Store) newRunner(spec Spec, j *record) *engine.Runner {
	cfg := engine.Config{
		Definition: spec.Definition,
		Inputs:     spec.Inputs,
		MayFail:    spec.MayFail,
		Env:        spec.Env,
		RunnerEnv:  spec.RunnerEnv,
		Vars:       spec.Vars,
		Fetcher:    s.cfg.Fetcher,
		Secrets:    &j.output.secrets,
		OrphanDir:  s.cfg.OrphanDir,
		Timeout:    min(cmp.Or(spec.Timeout, s.cfg.MaxRunTime), s.cfg.MaxRunTime),
		Grace:      cmp.Or(spec.Grace, s.cfg.Grace),
		Observe:    j.observe,
	}
	s.record(spec.Trace, j, &cfg)
	if starter := s.cfg.Starter; starter != nil {
		cfg.Start = starter.Start
		starter.Prepare() // while the job's files are made
	}
	return engine.New(cfg)
}

// Cancel stops a job that runs, as [engine.Runner.Stop] does, with its grace; by force it kills it at
// once. It does not wait for that. A job that has ended it removes. A job there is not needs nothing.
func (s *Store) Cancel(id string, force bool) { s.cancel(id, force, false) }

// Discard stops a job that runs, as Cancel does, and removes it when it has ended, which may be now.
func (s *Store) Discard(id string) { s.cancel(id, false, true) }

// Stop stops a job that runs, as Cancel does. One that has ended stays.
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
		j.remove() // waits for the collector if that is at it
		s.wakeCollector()
	case ended:
		s.wakeCollector() // for those who follow it
	case force:
		j.kill(errors.New("the job was killed"))
	default:
		j.stop("the job was cancelled", j.grace)
	}
}

// List returns the jobs with the given ids, or all, by the time they started. Ids there is no job for
// are left out.
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
