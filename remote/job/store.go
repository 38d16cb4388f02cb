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
	"time"

	"github.com/stepmux/stepmux/remote/engine"
	"github.com/stepmux/stepmux/remote/steps"
)

// Config says where a Store keeps its jobs, and its limits.
type Config struct {
	// Dir is a private directory that exists. The store makes the directory jobs in it, and empties it
	// of what another left: jobs do not survive their store.
	Dir string
	// WorkBase is what relative work directories are relative to. If empty, the process's directory.
	WorkBase string
	// OrphanDir is removed if this process dies while jobs run and nobody holds a lock on it. May be
	// empty.
	OrphanDir string

	// Keep is how long a job that has ended is remembered. If zero, 30 min.
	Keep time.Duration
	// Linger is how much longer at most the output stays readable to those who follow a job when it is
	// removed. If zero, 60 s.
	Linger time.Duration
	// MaxJobs is the most jobs that run or are remembered; the one that ended first goes for a new one.
	// If zero, 1,000.
	MaxJobs int
	// OutputLimit is the most bytes of each stream that are kept. If zero, 256 MiB. If negative, all.
	OutputLimit int64
	// MaxRunTime is the most time any job may take. If zero, 24 h.
	MaxRunTime time.Duration
	// Grace is the time between SIGTERM and SIGKILL for jobs that name none. If zero, 10 s.
	Grace time.Duration
}

// withDefaults returns c with its zero values replaced.
func (c Config) withDefaults() (Config, error) {
	var err error
	if c.WorkBase == "" {
		c.WorkBase = "."
	}
	if c.WorkBase, err = filepath.Abs(c.WorkBase); err != nil {
		return c, fmt.Errorf("find working directory: %w", err)
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return c, fmt.Errorf("find working directory: %w", err)
	}
	c.Keep = cmp.Or(c.Keep, 30*time.Minute)
	c.Linger = cmp.Or(c.Linger, time.Minute)
	c.MaxJobs = cmp.Or(c.MaxJobs, 1000)
	c.OutputLimit = max(cmp.Or(c.OutputLimit, 256<<20), 0)
	c.MaxRunTime = cmp.Or(c.MaxRunTime, 24*time.Hour)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	return c, nil
}

// Spec is a job to run.
type Spec struct {
	// ID names the job. Two Specs with the same ID are the same job if their Digests are equal.
	ID     string
	Digest [sha256.Size]byte

	Definition *steps.Definition
	// Env is the environment of all steps, below what the definition says.
	Env map[string]string
	// WorkDir is where the steps run, made if missing. If empty, a fresh directory that goes with the
	// job's end.
	WorkDir string
	// Timeout is the time the job has. If zero, or more than that, Config.MaxRunTime.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL when the job is stopped. If zero, Config.Grace.
	Grace time.Duration
}

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
	if err := removeTree(s.dir); err != nil {
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
	j.runner = engine.New(engine.Config{
		Definition: spec.Definition,
		Env:        spec.Env,
		OrphanDir:  s.cfg.OrphanDir,
		Timeout:    min(cmp.Or(spec.Timeout, s.cfg.MaxRunTime), s.cfg.MaxRunTime),
		Grace:      cmp.Or(spec.Grace, s.cfg.Grace),
		Observe:    j.observe,
	})
	j.grace = cmp.Or(spec.Grace, s.cfg.Grace)
	s.jobs[spec.ID] = j
	go s.execute(j, spec.Definition)
	s.mu.Unlock()
	if full {
		s.wakeCollector()
	}
	return nil
}

// Cancel stops a job that runs, as [engine.Runner.Stop] does, with its grace; by force it kills it at
// once. It does not wait for that. A job that has ended it removes. A job there is not needs nothing.
func (s *Store) Cancel(id string, force bool) {
	s.mu.Lock()
	j := s.jobs[id]
	ended := j != nil && j.state != Running
	if ended {
		s.removeLocked(j)
	}
	s.mu.Unlock()
	switch {
	case j == nil:
	case ended:
		s.collectDue()
		s.wakeCollector() // for those who follow it
	case force:
		j.kill(errors.New("the job was killed"))
	default:
		j.runner.Stop("the job was cancelled", j.grace)
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

// Shutdown ends all jobs: SIGTERM, and SIGKILL to all that is left after grace or when ctx ends. It
// waits for their end, after SIGKILL for at most killTimeout. New jobs are refused from the start. How
// jobs ended can be seen, and followed, until Close; jobs are not collected any more. Shutdown may be
// called again, and the shortest grace counts. The error says that something could not be ended.
func (s *Store) Shutdown(ctx context.Context, grace time.Duration) error {
	s.mu.Lock()
	s.shutdown = true
	var running []*record
	for _, j := range s.jobs {
		if j.state == Running {
			running = append(running, j)
		}
	}
	s.mu.Unlock()
	s.stop()
	s.collector.Wait()

	for _, j := range running {
		j.runner.Stop("the step runner is shutting down", grace)
	}
	soft, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	left := awaitAll(soft, running)
	for _, j := range left {
		j.kill(errors.New("the step runner is shutting down"))
	}
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if left = awaitAll(hard, left); len(left) > 0 {
		return fmt.Errorf("end jobs: %d of %d still run %v after SIGKILL", len(left), len(running), killTimeout)
	}
	return nil
}

// killTimeout bounds the wait for a killed job: for its processes, and for what it left to be removed.
const killTimeout = 15 * time.Second

// awaitAll waits until all jobs have ended, or ctx has, and returns those that have not.
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

// Close is Shutdown without any grace, after which all jobs are removed, also from those who follow
// them. It is idempotent.
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
	s.finished = nil
	s.mu.Unlock()
	for _, j := range gone {
		j.remove()
	}
	if err != nil {
		return err
	}
	return removeTree(s.dir)
}
