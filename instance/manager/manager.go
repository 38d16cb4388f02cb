package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance/manager/archive"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/actionservices"
)

const (
	// maxHeld bounds the builds that were taken from the queue and have no slot: those that wait for some of the VMs.
	maxHeld = 500
	// maxStrangers bounds the requests in a row among which a build is looked for that runs.
	maxStrangers = 64
)

// Manager runs the builds of its queue, and carries pipelines out. It owns a goroutine for each build that it has taken
// and some for each pipeline, one that takes builds and one that takes pipelines, one that gives signs of life and one
// that removes files. It is safe for concurrent use.
type Manager struct {
	cfg   Config
	store *state.Store
	files archive.Store
	since time.Time

	life context.Context // ends with Shutdown, or with the store
	fail context.CancelCauseFunc
	wg   sync.WaitGroup

	takes  context.Context // ends when no more builds are taken
	stop   context.CancelFunc
	closed sync.Once

	services *actionservices.Server // for the actions of workflows
	rooms    rooms

	backlog backlog
	groups  elasticGroups
	events  events
	leases  leases
	fleet   fleet
	begins  sync.Mutex // held while it is found out whether a build is to be begun; guards the following
	// canceled is the highest queue sequence whose build was canceled before it started.
	canceled uint64
	// draining is held while a VM is taken out or let in.
	draining sync.Mutex
	// remarks is held while a trace is read for its annotations.
	remarks sync.Mutex

	mu      sync.Mutex // guards the following
	live    map[string]*build
	carried map[string]*PipelineRun
	drains  map[string]*drained // the last change of each, by the ID of the VM
	doors   []door
}

// ErrStopped is the cause of the end of a Manager that was shut down.
var ErrStopped = errors.New("the manager was stopped")

// newLife makes the context of a manager's life. A test counts what that holds.
var newLife = context.WithCancelCause

// Open opens the state, resumes the builds that run, and begins to take others. ctx bounds the opening. The caller
// calls Shutdown.
func Open(ctx context.Context, cfg Config) (*Manager, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	m := &Manager{
		cfg: cfg, since: time.Now(), live: map[string]*build{}, drains: map[string]*drained{},
		carried: map[string]*PipelineRun{},
		events:  events{unkept: make(chan state.Event, maxUnkept), seen: map[string]uint64{}},
	}
	var err error
	if m.store, err = state.Open(ctx, state.Config{
		Dir: cfg.Dir, KeyFile: cfg.KeyFile, NATS: cfg.NATS, Keep: cfg.Keep, LogBytes: cfg.LogBytes,
		FileBytes: cfg.FileBytes, Logger: cfg.Logger,
	}); err != nil {
		return nil, err
	}
	m.life, m.fail = newLife(context.WithoutCancel(ctx))
	m.takes, m.stop = context.WithCancel(m.life)
	var q, calls *state.Queue
	m.leases.all = map[string]*lease{}
	m.fleet = fleetOf(m)
	if err = m.makeGroups(); err == nil {
		m.files, err = m.store.OpenFiles(ctx)
	}
	if err == nil {
		err = m.openServices() //nolint:contextcheck // requests have contexts of their own
	}
	if err == nil {
		err = m.fleet.join(ctx)
	}
	if err == nil {
		err = m.store.Persist(ctx, m.restoreGroups)
	}
	if err == nil {
		err = m.store.Persist(ctx, m.restoreLeases)
	}
	if err == nil {
		err = m.store.Persist(ctx, func(ctx context.Context) (err error) {
			if q, err = m.store.OpenQueue(ctx, m.cfg.Lease); err == nil {
				calls, err = m.store.OpenCalls(ctx, m.cfg.Lease)
			}
			return err
		})
	}
	if err == nil {
		err = m.fleet.start(ctx)
	}
	if err != nil {
		err = fmt.Errorf("state directory %s: %w", cfg.Dir, err)
		return nil, errors.Join(err, m.Shutdown(ctx))
	}
	m.wg.Go(func() { m.take(q) }) //nolint:contextcheck // its life is the manager's
	if m.cfg.Pipelines != nil {
		m.wg.Go(func() { m.takePipelines(calls) }) //nolint:contextcheck // as above
	}
	m.runGroups()
	m.wg.Go(m.giveSigns)
	m.wg.Go(m.sweepFiles)
	m.wg.Go(m.examine)
	m.wg.Go(m.keepEvents)
	return m, nil
}

// resume takes on the builds that a manager before had begun, at once, since they linger for a time only. They come
// first in the queue, but for builds that wait for some of the VMs: it gives up after most requests in a row whose
// builds had not begun. Any that it does not find are resumed when the queue hands them out.
func (m *Manager) resume(ctx context.Context, most int) error {
	seq := uint64(1)
	for strangers := 0; strangers < most; {
		r, err := m.store.Queued(ctx, seq)
		if err != nil || r == nil {
			return err
		}
		seq = r.Seq + 1
		begun, err := m.resumeOne(ctx, r)
		if err != nil {
			return err
		}
		if strangers++; begun {
			strangers = 0
		}
	}
	return nil
}

// resumeOne takes on a build if a manager before had begun it, and reports whether one had.
func (m *Manager) resumeOne(ctx context.Context, r *state.Request) (begun bool, err error) {
	m.begins.Lock()
	defer m.begins.Unlock()
	if m.find(r.ID) != nil {
		return true, nil
	}
	rec, err := m.store.Record(ctx, r.ID)
	if err != nil || rec == nil || rec.Phase != state.PhaseRunning {
		return rec != nil && rec.Phase == state.PhaseEnded, err
	}
	if !m.fleet.Has(rec.Instance) {
		return true, nil
	}
	err = m.begin(ctx, r, rec, nil, nil)
	if errors.Is(err, state.ErrTaken) {
		err = nil
	}
	return true, err
}

// find returns the build with an ID if this manager has it.
func (m *Manager) find(id string) *build {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[id]
}

// launch starts the goroutine of a build. It returns false if the manager ends.
func (m *Manager) launch(b *build) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.takes.Err() != nil {
		return false
	}
	m.live[b.ID] = b
	m.wg.Go(func() {
		m.run(b)
		m.mu.Lock()
		delete(m.live, b.ID)
		m.mu.Unlock()
		if b.kept().Phase != state.PhaseEnded {
			m.fleet.ceased()
		}
	})
	return true
}

// spawn runs do in a goroutine that Shutdown waits for. It returns false if the manager ends.
func (m *Manager) spawn(do func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.takes.Err() != nil {
		return false
	}
	m.wg.Go(do)
	return true
}

// builds returns the builds that this manager has taken.
func (m *Manager) builds() []*build {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*build, 0, len(m.live))
	for _, b := range m.live {
		all = append(all, b)
	}
	return all
}

// giveSigns tells the queue that the builds are not lost, and ends the manager when the store is.
func (m *Manager) giveSigns() {
	signs, checks := time.NewTicker(m.cfg.Lease/6), time.NewTicker(state.SettlePause)
	defer signs.Stop()
	defer checks.Stop()
	for {
		select {
		case <-signs.C:
			m.signal()
		case <-checks.C:
			m.store.Settle(m.takes)
			if err := m.store.Err(); err != nil {
				m.cfg.Logger.Error("the state cannot be kept", "error", err)
				m.fail(err)
				return
			}
		case <-m.takes.Done():
			return
		}
	}
}

// Done returns a channel that is closed when the Manager cannot go on, or was shut down.
func (m *Manager) Done() <-chan struct{} { return m.life.Done() }

// Err returns why Done is closed: ErrStopped, or a failure of the store. It is nil before.
func (m *Manager) Err() error { return context.Cause(m.life) }

// Shutdown takes no more builds and leaves those that run to the next manager: they go on for their linger. Leases
// stay, but their commands are ended. It returns when all goroutines have ended, soon, and at most when ctx ends;
// then it returns ctx's cause. It is idempotent.
func (m *Manager) Shutdown(ctx context.Context) (err error) {
	m.closed.Do(func() {
		m.mu.Lock()
		m.stop()
		for _, d := range m.drains {
			if d.timer != nil {
				d.timer.Stop()
			}
		}
		m.mu.Unlock()
		for _, b := range m.builds() {
			m.wg.Go(func() { m.leave(ctx, b) })
		}
		m.leaveLeases() //nolint:contextcheck // each end is bounded
		gone := make(chan struct{})
		go func() { // it ends with the goroutines; each is bounded
			m.wg.Wait()
			close(gone)
		}()
		select {
		case <-gone:
			m.store.Settle(ctx)
		case <-ctx.Done():
			err = fmt.Errorf("stop the manager: %w", context.Cause(ctx))
		}
		if m.groups.stop != nil {
			m.groups.stop()
		}
		m.fleet.Leave(ctx)
		m.fail(ErrStopped)
		m.store.Close()
	})
	return err
}

// leave leaves a build to another manager, unless its outcome is known.
func (m *Manager) leave(ctx context.Context, b *build) {
	if m.cfg.EndBuilds && b.kept().Phase == state.PhaseRunning {
		b.cancel(ErrStopped)
		select {
		case <-b.done:
			return
		case <-ctx.Done():
		}
	}
	m.leaveTo(b) //nolint:contextcheck // the manager's life ends when ctx has
}
