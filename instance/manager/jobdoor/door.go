package jobdoor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// FirstBackoff is the pause after an error of a server. It doubles up to LastBackoff.
	FirstBackoff = time.Second
	// LastBackoff is the longest pause after errors of a server.
	LastBackoff = 30 * time.Second
	// endGrace is how long a question to the server may still be answered, and the answer be kept, at the end of a door.
	endGrace = 10 * time.Second
	// slotPause is the pause after a slot could not be reserved.
	slotPause = 15 * time.Second
	// maxErrorText bounds the text of an error, in bytes.
	maxErrorText = 300
)

// Config describes a Door.
type Config struct {
	// Kind and Name name the server in keys of the state; Name is 1 to 32 of a-z 0-9 -.
	Kind, Name string
	// URL is that of the server, for people.
	URL string
	// Limit bounds the jobs at once. If zero, only the slots do.
	Limit int
}

// Server is the part of a door that knows its server.
type Server interface {
	// Take asks for jobs until term ends. life ends after it, or with it. It may return before; then it is called again.
	Take(life, term context.Context)
	// Resume reads the record of a job that a door before has kept under a key, and returns how to report it.
	Resume(key string, text []byte) (Report, error)
}

// Report runs and reports a job to its end, or until ctx ends: then another door goes on. room may be nil.
type Report func(ctx context.Context, room Room)

// Door keeps and reports the jobs of a server. It is safe for concurrent use.
type Door struct {
	cfg  Config
	host Host

	jobs  sync.WaitGroup
	count atomic.Int64  // of jobs
	taken atomic.Int64  // jobs in all
	woken chan struct{} // has room for one: there may be a job, or one has ended

	mu      sync.Mutex // guards the following
	state   string
	reason  string
	changed time.Time
	told    []string // errors since then that the log has
}

// The states of a door.
const (
	Registering = "registering" // the server does not know it yet
	Ready       = "ready"
	Away        = "away" // the server does not answer, or refuses
)

// Standing is how a door stands.
type Standing struct {
	Name, URL string
	// State is one of the states, since a time. Reason is why it is away.
	State, Reason string
	Since         time.Time
	// Jobs are those that it has now, and Taken counts those since the manager has started.
	Jobs, Taken int64
}

// New returns a Door. The caller calls Serve.
func New(cfg Config, host Host) *Door {
	host.Logger = host.Logger.With("server", cfg.Name)
	return &Door{cfg: cfg, host: host, woken: make(chan struct{}, 1), state: Registering, changed: time.Now()}
}

// Host returns the manager. Its Logger names the server.
func (d *Door) Host() *Host { return &d.host }

// Standing returns how the door stands.
func (d *Door) Standing() Standing {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Standing{d.cfg.Name, d.cfg.URL, d.state, d.reason, d.changed, d.count.Load(), d.taken.Load()}
}

// Serve takes jobs from the server until ctx ends, and returns when all that it has started has ended. Jobs that it has
// then go on: the next door of this name reports them.
func (d *Door) Serve(ctx context.Context, s Server) {
	for ctx.Err() == nil {
		term, stop, err := d.host.Term(ctx)
		if err == nil {
			d.serve(ctx, term, s)
			stop()
		}
	}
}

// serve serves while this manager may have jobs. life is Serve's context.
func (d *Door) serve(life, term context.Context, s Server) {
	defer d.jobs.Wait()
	resume := func() error {
		return d.host.Tasks(term, d.Key(kindTask), func(key string, text []byte) {
			report, err := s.Resume(key, text)
			if err != nil {
				d.host.Logger.Error("a job in the state cannot be read", "key", key, "error", err)
				return
			}
			d.start(term, key, nil, report)
		})
	}
	d.Repeat(term, "go on with its jobs", resume)
	d.jobs.Go(func() {
		for d.host.AwaitTasks(term) == nil {
			d.Repeat(term, "go on with the jobs of other managers", resume)
		}
	})
	for term.Err() == nil {
		s.Take(life, term)
	}
}

// Key returns the key of the door's texts of a kind in the state.
func (d *Door) Key(kind string) string { return d.cfg.Kind + "." + d.cfg.Name + "." + kind }

const kindTask = "task"

// TaskKey returns the key of a job, by its number at the server.
func (d *Door) TaskKey(number int64) string {
	return d.Key(kindTask) + "." + strconv.FormatInt(number, 10)
}

// Reserve waits until the limit lets one more job run, and for a slot. It adds slots that are free and that nobody
// waits for, until it has n. Without a slot it tells why, and returns after a pause, or when ctx ends.
func (d *Door) Reserve(ctx context.Context, n int) (rooms []Room) {
	if d.cfg.Limit > 0 {
		left := func() int { return d.cfg.Limit - int(d.count.Load()) }
		for left() <= 0 {
			select {
			case <-d.woken:
			case <-ctx.Done():
				return nil
			}
		}
		n = min(n, left())
	}
	room, err := d.host.Reserve(ctx)
	switch {
	case err == nil:
		for rooms = []Room{room}; len(rooms) < n; rooms = append(rooms, room) {
			if room = d.host.TryReserve(); room == nil {
				break
			}
		}
	case ctx.Err() == nil:
		d.host.Logger.Warn("there is no slot for jobs", "error", err)
		_ = pause.For(ctx, slotPause)
	}
	return rooms
}

// Release gives slots back.
func Release(rooms []Room) {
	for _, room := range rooms {
		room.Release()
	}
}

// Rest waits for a time, or until the door is woken.
func (d *Door) Rest(ctx context.Context, wait time.Duration) (woken bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.woken:
		return true
	case <-ctx.Done():
	}
	return false
}

// Wake ends a Rest.
func (d *Door) Wake() {
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

// Begin keeps a job, by its number at the server, and starts its report, unless the term has ended: then the manager
// that has the job does so. room, which may be nil, is released in any case.
func (d *Door) Begin(
	life, term context.Context, number int64, encode func() ([]byte, error), room Room, report Report,
) {
	key, known := d.TaskKey(number), false
	keep := func() error {
		keeping, stop := Beyond(life) // the server counts on it
		defer stop()
		text, err := encode()
		if err == nil {
			err = d.host.KeepTask(keeping, key, text)
		}
		if known = errors.Is(err, ErrKept); known {
			return nil // it is reported, or will be
		}
		return err
	}
	if err := keep(); err != nil {
		d.host.Logger.Error("a job cannot be kept", "job", number, "error", err)
		d.Repeat(life, "keep a job", keep)
	}
	if term.Err() == nil && !known {
		d.start(term, key, room, report)
	} else if room != nil {
		room.Release()
	}
}

// start starts the report of a job.
func (d *Door) start(term context.Context, key string, room Room, report Report) {
	d.count.Add(1)
	d.taken.Add(1)
	d.jobs.Go(func() {
		defer func() {
			d.count.Add(-1)
			d.Wake()
		}()
		if room != nil {
			defer room.Release()
		}
		report(term, room)
		if term.Err() != nil {
			return // the next door goes on, or another manager
		}
		d.Repeat(term, "forget a job", func() error { return d.host.ForgetTask(term, key) })
	})
}

// Repeat repeats do until it succeeds or ctx ends. Pauses grow.
func (d *Door) Repeat(ctx context.Context, what string, do func() error) {
	for wait := FirstBackoff; ctx.Err() == nil; wait = min(2*wait, LastBackoff) {
		err := do()
		if err == nil && wait > FirstBackoff {
			d.Works()
		}
		if err == nil {
			return
		}
		d.Fails(ctx, what, err)
		_ = pause.For(ctx, Jittered(wait))
	}
}

// maxTold bounds the errors that are told while a server is away.
const maxTold = 16

// Fails notes that something fails. Until the server answers again, each error is told once.
func (d *Door) Fails(ctx context.Context, what string, err error) {
	text := termtext.Short(fmt.Sprintf("cannot %s: %v", what, err), maxErrorText)
	if ctx.Err() != nil || !d.stands(Away, text) {
		return
	}
	d.mu.Lock()
	isNew := len(d.told) < maxTold && !slices.Contains(d.told, text)
	if isNew {
		d.told = append(d.told, text)
	}
	d.mu.Unlock()
	if isNew {
		d.host.Logger.Warn("the door " + text)
	}
}

// Works notes that the server answers.
func (d *Door) Works() {
	if d.stands(Ready, "") {
		d.host.Logger.Info("the server answers")
	}
}

// stands notes how the door stands, and reports whether that has changed.
func (d *Door) stands(state, reason string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == state && d.reason == reason {
		return false
	}
	if d.state != state {
		d.changed, d.told = time.Now(), nil
	}
	d.state, d.reason = state, reason
	return true
}

// Jittered returns a time between three quarters of wait and five quarters.
func Jittered(wait time.Duration) time.Duration {
	var b [1]byte
	_, _ = rand.Read(b[:]) // never fails
	return wait*3/4 + wait/2*time.Duration(b[0])/255
}

// Beyond returns a context that ends some seconds after ctx: a job whose answer is given up would be lost. The caller
// calls stop.
func Beyond(ctx context.Context) (later context.Context, stop func()) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		_ = pause.For(later, endGrace)
		cancel()
	})
	return later, func() {
		unhook()
		cancel()
	}
}
