package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/internal/pause"
)

// consume returns the consumer of the queue. For a manager alone it is new at each start, since checkDamage removes the
// one before: all requests that were not acknowledged come again at once.
func (m *Manager) consume(ctx context.Context) (jetstream.Consumer, error) {
	cfg := jetstream.ConsumerConfig{
		Durable: consumerName, FilterSubject: queueSubject, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: m.cfg.Lease, MaxAckPending: -1,
		MemoryStorage: true, // if its state is lost, all requests come again, as at the start
	}
	consumer, err := m.store.queue.CreateOrUpdateConsumer(ctx, cfg)
	if told, ok := errors.AsType[*jetstream.APIError](err); ok && told.ErrorCode == jetstream.JSErrCodeConsumerCreate {
		cfg.MemoryStorage = false // an earlier version has made it on the disk, and it has to stay there
		consumer, err = m.store.queue.CreateOrUpdateConsumer(ctx, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("open the queue: %w", err)
	}
	return consumer, nil
}

// next returns the next request of the queue. It waits for one until no more are to be taken.
//
// It asks for one request at a time: one that is pulled and not taken is nobody's. Not by Consumer.Messages, which then
// sometimes does not ask for the next one, and notices after two heartbeats: a request that comes before the call that
// asked for it has returned is taken for one that is still awaited.
func (m *Manager) next(queue jetstream.Consumer) (*delivery, error) {
	expiry := min(natscall.PullExpiry, m.cfg.Lease/3) // so that a delivery is not late when it comes
	for {
		asked := time.Now()
		ctx, cancel := context.WithTimeout(m.takes, expiry)
		msg, err := queue.Next(jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(min(natscall.PullHeartbeat, expiry/3)))
		cancel()
		if err == nil {
			return m.delivered(msg, asked), nil
		}
		none := errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
		if !none || m.takes.Err() != nil {
			return nil, err
		}
	}
}

// take takes builds from the queue, until no more are to be taken. With other managers it takes a build only when a
// slot is free for it.
func (m *Manager) take(queue jetstream.Consumer) {
	places := make(chan struct{}, m.fleet.ahead())
	for {
		select {
		case places <- struct{}{}:
		case <-m.takes.Done():
			return
		}
		release := sync.OnceFunc(func() { <-places })
		var d *delivery
		err := m.fleet.awaitRoom(m.takes)
		if err == nil {
			d, err = m.next(queue)
		}
		switch {
		case err != nil:
		case !m.fleet.hasRoom(): // the last slot has gone, as to a lease or by a drain
			release()
			err = d.giveBack(0) // another manager gets it: this one asks for none before it has room
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
			if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrConsumerDeleted) {
				if again, err := m.consume(m.takes); err == nil {
					queue = again
				}
			}
		}
	}
}

// accept begins a build that came from the queue. placed is called when it has a slot, or does not need one.
func (m *Manager) accept(d *delivery, placed func()) error {
	at, err := d.msg.Metadata()
	if err != nil {
		return err
	}
	r := requestOf(at.Sequence.Stream, d.msg.Headers(), d.msg.Data(), at.Timestamp)
	m.begins.Lock()
	defer m.begins.Unlock()
	r.fresh = m.fleet.isFresh(r, at.NumDelivered)
	if b := m.find(r.id); b != nil { // it was resumed, or came again
		placed()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.left {
			return m.pass(d)
		}
		b.msg = d
		return nil
	}
	if d.isLate() { // it came while the manager was stopped
		placed()
		return nil
	}
	ctx, cancel := context.WithTimeout(m.life, storeTimeout)
	defer cancel()
	var rec *record
	if !r.fresh {
		var over bool
		if rec, over, err = m.store.recordOrMark(ctx, r.id); err != nil {
			return err
		}
		if over {
			placed()
			return d.ack()
		}
	}
	if rec != nil && rec.Phase == phaseEnded {
		log, err := m.store.openLog(ctx, m.life, r.id)
		defer log.stop()
		if err == nil {
			err = log.end(rec.Result)
		}
		if err == nil {
			err = d.ack()
		}
		placed()
		return err
	}
	if rec != nil && rec.Phase == phaseRunning && !m.fleet.has(rec.Instance) {
		placed()
		return m.pass(d)
	}
	err = m.begin(ctx, r, rec, d, placed)
	if errors.Is(err, errTaken) {
		placed()
		return m.pass(d)
	}
	return err
}

// pass gives a build back to the queue, for another manager, or for later.
func (m *Manager) pass(d *delivery) error {
	wait := time.Second
	if at, err := d.msg.Metadata(); err == nil {
		wait <<= min(at.NumDelivered, 5)
	}
	return d.giveBack(min(wait/2, m.cfg.Lease))
}

// begin begins or resumes a build.
func (m *Manager) begin(
	ctx context.Context, r *request, rec *record, d *delivery, placed func(),
) error {
	log := m.store.newLog(m.life, r.id) //nolint:contextcheck // its life is the manager's
	begun := false
	defer func() {
		if !begun {
			log.stop()
			placed()
		}
	}()
	if err := m.fleet.takeOver(ctx, r, rec, log); err != nil {
		return err
	}
	asked, err := m.store.read(r)
	if err != nil {
		m.cfg.Logger.Error("a build cannot be run", "build", r.id, "error", err)
		return m.store.refuse(ctx, r, rec, log, &result{
			Reason: string(instance.RunnerSystemFailure), Message: err.Error(),
		})
	}
	where, err := m.where(asked.GetJob())
	if err != nil {
		return m.store.refuse(ctx, r, rec, log, &result{
			Reason: string(instance.ConfigurationError), Message: err.Error(),
		})
	}
	if rec == nil && m.fleet.isDamaged(log) {
		m.cfg.Logger.Error("a build has a log and no record: the state directory is damaged", "build", r.id)
		return m.store.refuse(ctx, r, nil, log, &result{
			Reason:  string(instance.RunnerSystemFailure),
			Message: "the build may have run: its record was damaged in the state directory",
		})
	}
	if (rec == nil || rec.Phase == phaseWaiting) && (d.isLate() || !m.fleet.takes(asked.GetLabels())) {
		return errTaken // by one that has such a VM, or got the request again
	}
	if rec == nil {
		rec = newRecord(r, asked)
	}
	queued := make(chan struct{})
	b := &build{
		request: *r, asked: asked, where: where, log: log, done: make(chan struct{}), record: *rec, msg: d,
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
	if b.kept().Phase != phaseRunning && !m.fleet.takes(asked.GetLabels()) {
		m.leaveTo(b) // this manager has just given its VM up
	}
	<-queued // builds get their slots in the order of the queue
	return nil
}
