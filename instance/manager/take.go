package manager

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/pause"
)

// acceptTimeout bounds the calls to the store for a request that was handed out.
const acceptTimeout = 30 * time.Second

// take takes builds from the queue, each when it has reserved a slot, until no more are to be taken. If no VM can ever
// take a build, it takes them all, and they end with the reason.
func (m *Manager) take(q *state.Queue) {
	var held *state.Delivery // of a request that came when the last slot had gone, as to a lease or by a drain
	for m.takes.Err() == nil {
		room, refusal := m.awaitRoom()
		d, err := held, error(nil)
		if held = nil; d == nil {
			d, room, err = m.nextBuild(q, room)
		}
		switch {
		case err != nil:
		case refusal == nil && room == nil:
			held, err = m.putOff(d)
		default:
			err = m.accept(d, room)
		}
		if err != nil && m.takes.Err() == nil {
			m.cfg.Logger.Error("cannot take a build from the queue", "error", err)
			_ = pause.For(m.takes, time.Second)
			q.Mend(m.takes, err)
		}
	}
}

// next returns the next request of a queue. It waits for one until no more are to be taken.
func (m *Manager) next(q *state.Queue) (*state.Delivery, error) {
	d, err := q.Next(m.takes)
	if err == nil {
		d.Until = m.fleet.keptUntil(d.Asked)
	}
	return d, err
}

// nextBuild returns the next request of the queue, with a slot for it if there is one. It holds no slot while it waits
// for a request.
func (m *Manager) nextBuild(
	q *state.Queue,
	room *instance.Reservation,
) (*state.Delivery, *instance.Reservation, error) {
	d, err := q.Poll()
	if d != nil {
		d.Until = m.fleet.keptUntil(d.Asked)
		return d, room, nil
	}
	room.Release()
	if err != nil {
		return nil, nil, err
	}
	if d, err = m.next(q); err != nil {
		return nil, nil, err
	}
	return d, m.cfg.Group.TryReserve(queueParty, nil), nil
}

// queueParty is the queue among the parties that wait for slots.
const queueParty = ""

// putOff puts a request off for which there is no slot. With other managers it gives the request back to the queue, for
// the one that has room first. A manager alone holds the request: JetStream forgets that a request was given back when
// requests before it are purged (findings/jetstream-purge-of-a-nak.sh).
func (m *Manager) putOff(d *state.Delivery) (held *state.Delivery, err error) {
	if m.fleet.ID() == "" {
		return d, nil
	}
	return nil, d.GiveBack(0)
}

// awaitRoom reserves a slot for the queue once not too many builds wait for some of the VMs. It returns an error if no
// VM can ever take a build, and at the manager's end.
func (m *Manager) awaitRoom() (*instance.Reservation, error) {
	for m.held() >= maxHeld && pause.For(m.takes, time.Second/10) == nil {
	}
	return m.cfg.Group.Reserve(m.takes, queueParty, nil)
}

// held returns how many builds have no slot.
func (m *Manager) held() (n int) {
	for _, b := range m.builds() {
		if b.waits() {
			n++
		}
	}
	return n
}

// accept begins a build that came from the queue, with a slot that was reserved for it; it may be nil.
func (m *Manager) accept(d *state.Delivery, room *instance.Reservation) error {
	defer room.Release() // unless the build has it
	r, err := d.Request()
	if err != nil {
		return err
	}
	m.begins.Lock()
	defer m.begins.Unlock()
	r.Fresh = m.fleet.isFresh(r, d.Times())
	if b := m.find(r.ID); b != nil { // it was resumed, or came again
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.left {
			return m.pass(d)
		}
		b.msg = d
		return nil
	}
	if d.IsLate() { // it came while the manager was stopped
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
		return err
	}
	if rec != nil && rec.Phase == state.PhaseRunning && !m.fleet.Has(rec.Instance) ||
		rec != nil && rec.Phase == state.PhaseWaiting && m.isOthers(d, r.ID) {
		return m.pass(d)
	}
	err = m.begin(ctx, r, rec, d, room)
	if errors.Is(err, state.ErrTaken) {
		return m.pass(d)
	}
	return err
}

// pass gives a build back to the queue, for another manager, or for later.
func (m *Manager) pass(d *state.Delivery) error {
	wait := time.Second << min(d.Times(), 5)
	return d.GiveBack(min(wait/2, m.cfg.Lease))
}

// begin begins or resumes a build. d may be nil, if the queue has not handed it out, and so may room, a slot for it.
func (m *Manager) begin(
	ctx context.Context, r *state.Request, rec *state.Record, d *state.Delivery, room *instance.Reservation,
) error {
	log := m.store.NewLog(m.life, r.ID) //nolint:contextcheck // its life is the manager's
	begun := false
	defer func() {
		if !begun {
			log.Stop()
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
	where, err := m.where(asked)
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
	rec.Warnings = asked.GetWarnings() // a build of a pipeline has its record before its request
	b := &build{
		Request: *r, asked: asked, where: where, log: log, done: make(chan struct{}), record: *rec, msg: d,
	}
	e := m.executorOf(b)
	b.executor.Store(e)
	b.ctx, b.cancel = context.WithCancelCause(context.WithoutCancel(m.life))
	if rec.Canceled {
		b.cancel(errCanceled)
	}
	if rec.Phase != state.PhaseRunning {
		e.Queue(room) // builds get their slots in the order of the queue
	}
	if !m.launch(b) { //nolint:contextcheck // its life is the manager's
		_ = e.Leave(m.life)           //nolint:contextcheck // it has nothing but its place there
		return context.Cause(m.takes) //nolint:contextcheck // the manager's end, not ctx's
	}
	begun = true
	if !m.fleet.takes(asked.GetLabels()) && slices.Contains(m.cfg.Group.Waiting(), b.attemptID()) {
		m.leaveTo(b) // this manager has just given its VM up
	}
	return nil
}

// signal tells the queues that the builds and pipelines of this manager are not lost.
func (m *Manager) signal() {
	sent := time.Now()
	var told []delivered
	for _, b := range m.builds() {
		if b.working() {
			told = append(told, b)
		}
	}
	for _, p := range m.pipelines() {
		if p.working() {
			told = append(told, p)
		}
	}
	m.fleet.confirm(told, sent)
}
