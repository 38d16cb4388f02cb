package manager

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/claims"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
)

// shared is the fleet of a manager that shares its VMs, and the state, with others. peers.go has what they ask each
// other.
type shared struct {
	*claims.Member
	m     *Manager
	found chan struct{} // has an element if builds may be there to be resumed
}

func newShared(m *Manager) *shared {
	c := &shared{m: m, found: make(chan struct{}, 1)}
	c.Member = claims.New(claims.Config{
		Dir: m.cfg.Dir, Lease: m.cfg.Lease, Store: m.store, Group: m.cfg.Group, Provider: m.cfg.Provider,
		Logger: m.cfg.Logger, Left: c.left, Renewed: c.renewed, Canceled: m.noteCancel, Changed: c.changed,
		IsLease: func(build string) bool { return strings.HasPrefix(build, leaseName) },
	})
	return c
}

func (c *shared) join(ctx context.Context) error { return c.Join(ctx, c.m.life) }

// start answers the other managers, and begins to look after the lease and for builds to resume.
func (c *shared) start(context.Context) error {
	if err := c.answer(); err != nil {
		return err
	}
	c.look() // for builds on the VMs that this manager has now
	c.m.wg.Go(func() { c.Run(c.m.takes) })
	c.m.wg.Go(c.resumeFound)
	return nil
}

// left leaves the builds and leases of a VM that this manager has left, and builds that wait for such a VM.
func (c *shared) left(builds []string) {
	c.m.abandon(builds)
	c.sendOn()
}

// renewed looks for builds that this manager may resume, and gives away some that wait.
func (c *shared) renewed(ctx context.Context) {
	c.look() // also for a build that was passed over, as because of an error
	c.sendToRoom(ctx)
}

// changed notes a drain.
func (c *shared) changed(entry jetstream.KeyValueEntry) {
	if !strings.HasPrefix(entry.Key(), drainPrefix) {
		return
	}
	if err := c.m.noteDrain(entry); err != nil {
		c.m.cfg.Logger.Error("cannot drain as another manager does", "error", err)
	}
}

// sendOn gives builds that wait, and for which no VM of this manager will do any more, back to the queue.
func (c *shared) sendOn() {
	for _, b := range c.m.builds() {
		if b.waits() && !c.m.cfg.Group.Takes(b.asked.GetLabels()) {
			c.m.leaveTo(b)
		}
	}
}

// look asks for a look at the queue for builds that can be resumed.
func (c *shared) look() {
	select {
	case c.found <- struct{}{}:
	default:
	}
}

// resumeFound resumes builds on VMs that this manager has got.
func (c *shared) resumeFound() {
	for {
		select {
		case <-c.found:
		case <-c.m.takes.Done():
			return
		}
		if err := c.m.resume(c.m.takes, maxStrangers); err != nil && c.m.takes.Err() == nil {
			c.m.cfg.Logger.Warn("cannot look for builds that run", "error", err)
			if pause.For(c.m.takes, time.Second) == nil {
				c.look()
			}
		}
	}
}

func (c *shared) takes(labels map[string]string) bool { return c.m.cfg.Group.Takes(labels) }

// drained sends builds on: another manager may have a VM for them.
func (c *shared) drained() { c.sendOn() }

// keptUntil leaves the rest of the time that the queue waits to a manager that is stopped just before it sends an
// acknowledgment.
func (c *shared) keptUntil(from time.Time) time.Time { return from.Add(c.m.cfg.Lease * 2 / 3) }

// isFresh is false: another manager may have begun the build.
func (*shared) isFresh(*state.Request, uint64) bool { return false }

func (c *shared) confirm(told []delivered, since time.Time) {
	if len(told) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.m.takes, c.m.cfg.Lease/6)
	defer cancel()
	if c.m.store.Conn.FlushWithContext(ctx) != nil {
		return // NATS may not have been told
	}
	for _, b := range told {
		b.counts(c.keptUntil(since))
	}
}

// takeOver keeps in the record that this manager has a build that runs, and then lets no other one write its log.
func (c *shared) takeOver(ctx context.Context, _ *state.Request, rec *state.Record, log *state.Log) error {
	runs := rec != nil && rec.Phase == state.PhaseRunning
	if runs {
		rec.Manager = c.ID()
		if err := c.m.store.Put(ctx, rec); err != nil {
			return err
		}
	}
	if err := log.Load(ctx); err != nil || !runs || log.Result() != nil {
		return err
	}
	return log.Claim() //nolint:contextcheck // bounded by the manager's life
}

// isDamaged is false: another manager may have made the record just now.
func (*shared) isDamaged(*state.Log) bool { return false }

// endTaken leaves the step runner: it may be that of the other manager.
func (c *shared) endTaken(e *instance.Executor) { _ = e.Leave(c.m.life) }

// repeats is true while the servers do not answer.
func (*shared) repeats(err error) bool { return !errors.Is(err, state.ErrTaken) }

func (*shared) mayMerge(*state.Record) bool { return true }

// ceased looks at the queue: this manager may have the VM again.
func (c *shared) ceased() { c.look() }

// cancelRecord marks the record: another manager has the build, or will take it.
func (c *shared) cancelRecord(ctx context.Context, rec *state.Record) (done bool, err error) {
	return true, c.cancelElsewhere(ctx, rec)
}

// awaitTasks waits as long as the lease is renewed: another manager may have died.
func (c *shared) awaitTasks(ctx context.Context) error { return pause.For(ctx, c.m.cfg.Lease/6) }

func (c *shared) awaitEnd(ctx context.Context, id string) error { return c.m.store.AwaitEnd(ctx, id) }

// abandon leaves builds and leases to another manager, by their names on the VM.
func (m *Manager) abandon(names []string) {
	for _, b := range m.builds() {
		if slices.Contains(names, b.attemptID()) {
			m.leaveTo(b)
		}
	}
	for _, name := range names {
		if l := m.findLease(name); l != nil {
			m.cfg.Logger.Warn("lease is lost with its instance", "lease", name)
			m.wg.Go(func() { _ = m.release(m.life, l, endVM) }) // logged there
		}
	}
}

// leaveTo leaves a build to another manager, unless its outcome is known.
func (m *Manager) leaveTo(b *build) {
	b.mu.Lock()
	b.left = b.left || !b.ending
	e, left := b.executor.Load(), b.left
	b.mu.Unlock()
	if left {
		m.wg.Go(func() { _ = e.Leave(m.life) }) // it goes on
	}
}
