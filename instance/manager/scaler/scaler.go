package scaler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/instance/elastic/source"
)

const (
	// DefaultPeriod is the time between two lists of the VMs.
	DefaultPeriod = 10 * time.Second
	// DefaultReadyTimeout is how long a VM may take until it takes builds.
	DefaultReadyTimeout = 5 * time.Minute
	// lookPause is the time between two decisions.
	lookPause = time.Second
	// hasty is by how much shorter the period is while VMs are being made or deleted.
	hasty = 5
	// firstBackoff is the pause after an error of the source. It doubles up to lastBackoff.
	firstBackoff, lastBackoff = 5 * time.Second, 5 * time.Minute
	// lostAfter is when a VM that was asked for, and that no list has had, is not expected any more.
	lostAfter = 20 * time.Minute
	// deletedAfter is when a VM that the source was told to delete, and that is still listed as running, is deleted again.
	deletedAfter = 5 * time.Minute
	// maxDeleted bounds the VMs of one call.
	maxDeleted = 100
)

// Config describes a group. Name, Source and Logger are required.
type Config struct {
	Name   string
	Policy elastic.Config
	Source source.Source
	// Labels and UserData are for the source, when it makes VMs.
	Labels   map[string]string
	UserData string
	// Period is the time between two lists. If zero, DefaultPeriod.
	Period time.Duration
	// ReadyTimeout is how long a VM may take from the list that has it first until it takes builds. After that time no
	// others are made for a while, and after three times that time it is deleted. If zero, DefaultReadyTimeout.
	ReadyTimeout time.Duration
	Logger       *slog.Logger
}

// Check returns an error for a configuration that cannot work.
func (cfg *Config) Check() error {
	if cfg.Period < 0 || cfg.Period > 0 && cfg.Period < time.Second {
		return fmt.Errorf("period %v: use at least 1s", cfg.Period)
	}
	if cfg.ReadyTimeout < 0 || cfg.ReadyTimeout > 0 && cfg.ReadyTimeout < time.Second {
		return fmt.Errorf("ready-timeout %v: use at least 1s", cfg.ReadyTimeout)
	}
	_, err := elastic.New(cfg.Policy)
	return err
}

// Scaler scales a group. Restore and Run are called one after the other, and Status by any goroutine.
type Scaler struct {
	cfg    Config
	host   Host
	policy *elastic.Policy
	log    *slog.Logger

	calls   sync.WaitGroup // of the source; Run waits for them
	results chan func()    // of calls; Run's goroutine calls them

	// Run's goroutine has the following.
	info   source.Info
	asked  bool // info is known
	known  map[string]*known
	kept   map[string]string // the texts of the VMs that are kept
	record record
	mine   bool // this manager scales
	look   Look

	listing, creating, deleting bool // a call is under way
	listed                      bool // there was a list
	listAt, deleteAt            time.Time
	empties                     int // lists in a row that were empty, although VMs were known
	failures, deleteFailures    int // in a row
	retryAt                     time.Time
	throttle                    elastic.Throttle

	mu     sync.Mutex // guards the following
	status Status
	errs   [ops]string // the last error of each operation; empty if it has worked since
}

// The operations of a source, as indexes of Scaler.errs.
const (
	opList = iota
	opCreate
	opDelete
	ops
)

// New returns a Scaler. The host is not called yet.
func New(cfg Config, host Host) (*Scaler, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg.Period, cfg.ReadyTimeout = cmp.Or(cfg.Period, DefaultPeriod), cmp.Or(cfg.ReadyTimeout, DefaultReadyTimeout)
	policy, err := elastic.New(cfg.Policy)
	return &Scaler{
		cfg: cfg, host: host, policy: policy, log: cfg.Logger.With("group", cfg.Name), results: make(chan func()),
		known: map[string]*known{}, kept: map[string]string{}, status: Status{Name: cfg.Name, Max: cfg.Policy.MaxInstances},
	}, err
}

// Restore gives the host the VMs that a manager before has kept, so that builds there go on before the source has
// listed them.
func (s *Scaler) Restore(ctx context.Context) error {
	if err := s.loadKept(ctx); err != nil {
		return err
	}
	now := time.Now()
	for id, text := range s.kept {
		if vm, err := readVM(text); err == nil {
			s.known[id] = newKnown(vm, now)
		}
	}
	text, _, err := s.host.Claim(ctx)
	if err == nil {
		s.record, err = readRecord(text)
	}
	if err == nil {
		err = s.host.Use(ctx, s.usable())
	}
	s.applyDrains()
	return err
}

// Run scales until ctx ends. It returns when all calls of the source have ended.
func (s *Scaler) Run(ctx context.Context) {
	defer s.calls.Wait()
	s.mine = false // what the record asks for is asked for again
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	for {
		s.step(ctx)
		select {
		case <-tick.C:
		case result := <-s.results:
			result()
		case <-ctx.Done():
			return
		}
	}
}

// call runs a call of the source, and then done, in Run's goroutine.
func (s *Scaler) call(ctx context.Context, do func(), done func()) {
	s.calls.Go(func() {
		do()
		select {
		case s.results <- done:
		case <-ctx.Done():
		}
	})
}

// step lists, looks and decides, each if it is time.
func (s *Scaler) step(ctx context.Context) {
	now := time.Now()
	if !s.listing && !now.Before(s.listAt) {
		s.list(ctx)
	}
	if !s.listed || ctx.Err() != nil {
		return
	}
	if err := s.claim(ctx); err != nil {
		s.log.Warn("cannot read the record of the group", "error", err)
		return
	}
	s.applyDrains()
	if !s.mine {
		s.show(elastic.Decision{}, nil)
		return
	}
	look, err := s.host.Look(ctx)
	if err != nil {
		s.log.Warn("cannot see how the VMs are used", "error", err)
		return
	}
	s.look = look
	s.resume(ctx)
	s.decide(ctx, now)
}

// claim notes whether this manager scales.
func (s *Scaler) claim(ctx context.Context) error {
	text, mine, err := s.host.Claim(ctx)
	if err != nil || mine && s.mine {
		return err
	}
	if s.record, err = readRecord(text); err != nil {
		return err
	}
	if !mine {
		s.mine = false
		return nil
	}
	if err := s.loadKept(ctx); err != nil {
		return err
	}
	s.keepVMs(ctx)
	s.mine = true
	return nil
}

// backoff returns the pause after so many failures.
func backoff(failures int) time.Duration {
	return min(firstBackoff<<min(max(failures-1, 0), 10), lastBackoff)
}

// failed notes an error of an operation, or nil if it has worked. An error is logged once.
func (s *Scaler) failed(op int, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	again := s.errs[op] == text
	if s.errs[op] = text; err != nil {
		s.status.Failures++
	}
	s.mu.Unlock()
	if err != nil && !again {
		s.log.Error("the source of VMs has failed", "error", err)
		s.host.Note("failed", "", text)
	}
}

// Status returns how the group stands.
func (s *Scaler) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Err = cmp.Or(s.errs[:]...)
	return status
}
