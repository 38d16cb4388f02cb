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
	"sort"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// Store runs jobs and keeps their results. It has one goroutine for each running job, and short ones that remove jobs.
// Shutdown waits for all of them. It is safe for concurrent use.
type Store struct {
	cfg Config
	dir string
	// run runs a job's steps. Tests of timing replace it.
	run func(context.Context, *engine.Runner, engine.Place) engine.Result

	collector  *time.Timer    // calls collect when the next job is due
	collecting sync.WaitGroup // of calls of collect
	reuse      reuse

	opening sync.Mutex // guards the following
	home    *os.File   // the open directory dir, which a job may move; nil before it is made and once it is removed

	mu       sync.Mutex // guards the following, and some fields of records
	jobs     map[string]*record
	closing  []*record // running jobs that were discarded
	finished []*record // jobs that have ended, oldest first
	kept     int64     // bytes of output of finished jobs
	removed  []*record // no longer in jobs, but perhaps still followed
	serial   int       // number of the last directory
	shutdown bool
	// disturbed says that a job did not end by itself: it was stopped, reached its time limit, or the machine failed it.
	disturbed bool
}

// New returns a store. The caller ends it with Close. Shutdown is enough if the process ends then, too.
func New(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open job store: %w", err)
	}
	s := &Store{
		cfg:  cfg,
		dir:  filepath.Join(cfg.Dir, "jobs"),
		run:  func(ctx context.Context, r *engine.Runner, p engine.Place) engine.Result { return r.Run(ctx, p) },
		jobs: map[string]*record{},
	}
	if err = rmtree.Remove(s.dir); err == nil {
		_, err = os.Stat(cfg.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open job store: %w", err)
	}
	s.collector = time.AfterFunc(cfg.Keep, s.collect) // no job is due earlier
	return s, nil
}

// Warm makes the directory of all jobs before the first job needs it. On some file systems that takes half a
// millisecond. New does not do it, so that the step runner listens earlier; it calls Warm while its first job is on the
// way. If Warm fails, the first job tries again.
func (s *Store) Warm() { _, _ = s.open() }

// open returns the open directory dir, which the first call that can makes.
func (s *Store) open() (_ *os.File, err error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.home != nil {
		return s.home, nil
	}
	if err = os.Mkdir(s.dir, 0o700); err == nil {
		if s.home, err = os.Open(s.dir); err != nil {
			_ = os.Remove(s.dir) // the next call makes it again
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open job store: %w", oserr.Hint(err, s.cfg.Dir))
	}
	return s.home, nil
}

// Create starts a job. If there is already one with its ID and Digest, Create does nothing. It does not wait for the
// job: if the machine fails to run the job, that is the job's failure. The error is ErrExists, ErrFull or ErrShutdown.
func (s *Store) Create(spec Spec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch j := s.jobs[spec.ID]; {
	case j != nil && j.digest != spec.Digest:
		return ErrExists
	case j != nil:
		return nil
	case s.shutdown:
		return ErrShutdown
	case len(s.jobs)+len(s.closing) < s.cfg.MaxJobs:
	case len(s.finished) == 0:
		return ErrFull
	default:
		s.removeLocked(s.finished[0])
		s.collector.Reset(0)
	}
	s.serial++
	dir := filepath.Join(s.dir, fmt.Sprintf("%x-%d", sha256.Sum256([]byte(spec.ID)), s.serial))
	j := newRecord(spec, dir, s.cfg.OutputLimit)
	j.grace = cmp.Or(spec.Grace, s.cfg.Grace)
	runner := s.newRunner(spec, j)
	j.runner.Store(runner)
	s.jobs[spec.ID] = j
	go s.execute(j, spec, runner)
	return nil
}

// newRunner returns the engine's runner for j, and starts the init of its processes. If j has a trace, a Recorder
// watches the runner.
func (s *Store) newRunner(spec Spec, j *record) *engine.Runner {
	cfg := spec.Config
	cfg.Fetcher, cfg.Language = s.cfg.Fetcher, s.cfg.Language
	if f, ok := cfg.Fetcher.(*component.Fetcher); ok && cfg.Services.Relayed != "" {
		cfg.Fetcher = f.Mirrored(cfg.Services.Relayed+"/", cfg.Services.Server+"/")
	}
	cfg.Secrets = &j.output.secrets
	cfg.Timeout = min(cmp.Or(cfg.Timeout, s.cfg.MaxRunTime), s.cfg.MaxRunTime)
	cfg.Grace = j.grace
	cfg.Observe = j.observe
	cfg.Policy = cfg.Policy.Under(s.cfg.Policy)
	start := proc.Start
	if init := s.cfg.Init; init != nil {
		start, cfg.Open = init.Start, init.Open
		init.Prepare() // while the job's files are made
	}
	cfg.Start = func(ctx context.Context, c proc.Command) (*proc.Process, error) {
		p, err := start(ctx, c)
		if err == nil || ctx.Err() != nil { // see [proc.Init.Start]
			j.begun.Store(true)
		}
		return p, err
	}
	if t := spec.Trace; t != nil {
		j.output.recorder = recording.New(cfg, recording.Config{
			Source: t.Source, Text: t.Text, Steps: t.Steps, Salt: t.Salt, Version: s.cfg.Version, Image: t.Image,
			Room: func(size int64) error { return j.traceFile.Reserve(size) },
		})
		cfg.Events = j.output.recorder
	}
	return engine.New(cfg)
}

// Cancel stops a running job as [engine.Runner.Stop] does: with the job's grace or, with force, with SIGKILL at once.
// It removes a job that has ended. It does not wait, and ignores an unknown id.
func (s *Store) Cancel(id string, force bool) { s.cancel(id, force, false) }

// Discard forgets a job: its ID is free at once. It stops a running job, as Cancel does, and removes its files once it
// has ended. Those who follow the job get the rest of its output and its end.
func (s *Store) Discard(id string) { s.cancel(id, false, true) }

// Stop stops a running job, as Cancel does. It keeps a job that has ended.
func (s *Store) Stop(id string) {
	if j := s.find(id); j != nil {
		j.stop("the job was cancelled", j.grace)
	}
}

// Kill kills a running job, with all its processes. It does nothing to a job that has ended.
func (s *Store) Kill(id string) {
	if j := s.find(id); j != nil {
		j.kill(errors.New("the job was killed"))
	}
}

// find returns the job with this id, or nil.
func (s *Store) find(id string) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs[id]
}

func (s *Store) cancel(id string, force, discard bool) {
	s.mu.Lock()
	j := s.jobs[id]
	if j == nil {
		s.mu.Unlock()
		return
	}
	ended, followed := j.state != Running, j.followers > 0
	if ended {
		s.removeLocked(j)
	}
	if discard && !ended {
		delete(s.jobs, id)
		s.closing = append(s.closing, j)
	}
	s.mu.Unlock()
	switch {
	case ended:
		if !followed {
			j.remove() // waits if the collector is removing it
		}
		s.collector.Reset(0) // it removes a followed job after its last follower, or after Linger
	case force:
		j.kill(errors.New("the job was killed"))
	default:
		j.stop("the job was cancelled", j.grace)
	}
}

// List returns the state of the jobs with the given ids, or of all jobs, sorted by their start. It ignores unknown ids.
func (s *Store) List(ids ...string) []Stat {
	s.mu.Lock()
	ids = slices.Clone(ids)
	if len(ids) == 0 {
		for id := range s.jobs {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	stats := make([]Stat, 0, len(ids))
	for _, id := range slices.Compact(ids) {
		if j := s.jobs[id]; j != nil {
			stats = append(stats, j.statLocked())
		}
	}
	s.mu.Unlock()
	// Not slices.SortFunc: that is compiled again for each type, which costs the VM's end 25 KB.
	sort.Slice(stats, func(i, j int) bool {
		a, b := stats[i], stats[j]
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID)) < 0
	})
	return stats
}

// Undisturbed reports whether all jobs that have ended have ended by themselves, in success or failure.
func (s *Store) Undisturbed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.disturbed
}

// Follow returns a Follower of the job with this id. The caller closes it. The error is ErrNotFound.
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
