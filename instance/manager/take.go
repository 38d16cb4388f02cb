package manager

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
)

// acceptTimeout bounds the calls to the store for a request that was handed out.
const acceptTimeout = 30 * time.Second

// next returns the next request of the queue. It waits for one until no more are to be taken.
func (m *Manager) next(q *state.Queue) (*state.Delivery, error) {
	d, err := q.Next(m.takes)
	if err == nil {
		d.Until = m.fleet.keptUntil(d.Asked)
	}
	return d, err
}

// take takes builds from the queue, until no more are to be taken. With other managers it takes a build only when a
// slot is free for it.
func (m *Manager) take(q *state.Queue) {
	places := make(chan struct{}, m.fleet.ahead())
	for {
		select {
		case places <- struct{}{}:
		case <-m.takes.Done():
			return
		}
		release := sync.OnceFunc(func() { <-places })
		var d *state.Delivery
		err := m.fleet.awaitRoom(m.takes)
		if err == nil {
			d, err = m.next(q)
		}
		switch {
		case err != nil:
		case !m.fleet.hasRoom(): // the last slot has gone, as to a lease or by a drain
			release()
			err = d.GiveBack(0) // another manager gets it: this one asks for none before it has room
		default:
			err = m.accept(d, release)
		}
		if err != nil {
			release()
			if m.takes.Err() != nil {
				return
			}
			m.cfg.Logger.Error("cannot take a build from the queue", "error", err)
			_ = pause.For(m.takes, time.Second)
			q.Mend(m.takes, err)
		}
	}
}

// accept begins a build that came from the queue. placed is called when it has a slot, or does not need one.
func (m *Manager) accept(d *state.Delivery, placed func()) error {
	r, err := d.Request()
	if err != nil {
		return err
	}
	m.begins.Lock()
	defer m.begins.Unlock()
	r.Fresh = m.fleet.isFresh(r, d.Times())
	if b := m.find(r.ID); b != nil { // it was resumed, or came again
		placed()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.left {
			return m.pass(d)
		}
		b.msg = d
		return nil
	}
	if d.IsLate() { // it came while the manager was stopped
		placed()
		return nil
	}
	ctx, cancel := context.WithTimeout(m.life, acceptTimeout)
	defer cancel()
	var rec *state.Record
	if !r.Fresh {
		var over bool
		if rec, over, err = m.store.RecordOrMark(ctx, r.ID); err != nil {
			return err
		}
		if over {
			placed()
			return d.Ack()
		}
	}
	if rec != nil && rec.Phase == state.PhaseEnded {
		log, err := m.store.OpenLog(ctx, m.life, r.ID)
		defer log.Stop()
		if err == nil {
			err = log.End(rec.Result)
		}
		if err == nil {
			err = d.Ack()
		}
		placed()
		return err
	}
	if rec != nil && rec.Phase == state.PhaseRunning && !m.fleet.Has(rec.Instance) {
		placed()
		return m.pass(d)
	}
	err = m.begin(ctx, r, rec, d, placed)
	if errors.Is(err, state.ErrTaken) {
		placed()
		return m.pass(d)
	}
	return err
}

// pass gives a build back to the queue, for another manager, or for later.
func (m *Manager) pass(d *state.Delivery) error {
	wait := time.Second << min(d.Times(), 5)
	return d.GiveBack(min(wait/2, m.cfg.Lease))
}

// begin begins or resumes a build.
func (m *Manager) begin(
	ctx context.Context, r *state.Request, rec *state.Record, d *state.Delivery, placed func(),
) error {
	log := m.store.NewLog(m.life, r.ID) //nolint:contextcheck // its life is the manager's
	begun := false
	defer func() {
		if !begun {
			log.Stop()
			placed()
		}
	}()
	if err := m.fleet.takeOver(ctx, r, rec, log); err != nil {
		return err
	}
	asked, err := m.store.Read(r)
	if err != nil {
		m.cfg.Logger.Error("a build cannot be run", "build", r.ID, "error", err)
		return m.store.Refuse(ctx, r, rec, log, &state.Result{
			Reason: string(instance.RunnerSystemFailure), Message: err.Error(),
		})
	}
	where, err := m.where(asked.GetJob())
	if err != nil {
		return m.store.Refuse(ctx, r, rec, log, &state.Result{
			Reason: string(instance.ConfigurationError), Message: err.Error(),
		})
	}
	if rec == nil && m.fleet.isDamaged(log) {
		m.cfg.Logger.Error("a build has a log and no record: the state directory is damaged", "build", r.ID)
		return m.store.Refuse(ctx, r, nil, log, &state.Result{
			Reason:  string(instance.RunnerSystemFailure),
			Message: "the build may have run: its record was damaged in the state directory",
		})
	}
	if (rec == nil || rec.Phase == state.PhaseWaiting) && (d.IsLate() || !m.fleet.takes(asked.GetLabels())) {
		return state.ErrTaken // by one that has such a VM, or got the request again
	}
	if rec == nil {
		rec = state.NewRecord(r, asked)
	}
	queued := make(chan struct{})
	b := &build{
		Request: *r, asked: asked, where: where, log: log, done: make(chan struct{}), record: *rec, msg: d,
		queued: sync.OnceFunc(func() { close(queued) }),
	}
	b.ctx, b.cancel = context.WithCancelCause(context.WithoutCancel(m.life))
	if rec.Canceled {
		b.cancel(errCanceled)
	}
	if !m.launch(b, placed) { //nolint:contextcheck // its life is the manager's
		return context.Cause(m.takes) //nolint:contextcheck // the manager's end, not ctx's
	}
	begun = true
	if b.kept().Phase != state.PhaseRunning && !m.fleet.takes(asked.GetLabels()) {
		m.leaveTo(b) // this manager has just given its VM up
	}
	<-queued // builds get their slots in the order of the queue
	return nil
}

// signal tells the queue that the builds of this manager are not lost.
func (m *Manager) signal() {
	sent := time.Now()
	var told []*build
	for _, b := range m.builds() {
		if b.working() {
			told = append(told, b)
		}
	}
	m.fleet.confirm(told, sent)
}
