package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// Delivery is a request that the queue has handed out to this manager, until it hands the request out again.
//
// JetStream looks at the place of the request alone: an InProgress, a Nak or a Term of an earlier delivery counts for
// the one that another manager has now. A manager that was stopped for a while, or cut off, must not send them. So
// there is no Term, and the others know how long the delivery is the latest one. Only an Ack may be late: it is sent
// once the record of the build has its result, or has expired, which holds for all deliveries.
type Delivery struct {
	msg   jetstream.Msg
	Asked time.Time // when the queue was asked for it
	// Until is when the queue may soon hand the request out again, as the manager says. If zero, that does no harm.
	Until time.Time
}

// Request returns the request that was handed out.
func (d *Delivery) Request() (*Request, error) {
	at, err := d.msg.Metadata()
	if err != nil {
		return nil, err
	}
	return requestOf(at.Sequence.Stream, d.msg.Headers(), d.msg.Data(), at.Timestamp), nil
}

// For returns the manager for which the request is first, or "".
func (d *Delivery) For() string { return d.msg.Headers().Get(managerHeader) }

// Times returns how often the request was handed out, with this time; 0 if that is not known.
func (d *Delivery) Times() uint64 {
	at, err := d.msg.Metadata()
	if err != nil {
		return 0
	}
	return at.NumDelivered
}

// IsLate reports whether another manager may have the request. A nil Delivery, of a request that the queue has not
// handed out, is not late.
func (d *Delivery) IsLate() bool { return d != nil && !d.Until.IsZero() && !time.Now().Before(d.Until) }

// Ack takes the request out of the queue: its build has ended.
func (d *Delivery) Ack() error { return d.msg.Ack() }

// InProgress tells the queue that the build is not lost. It reports whether it could, which a late delivery cannot.
func (d *Delivery) InProgress() bool { return !d.IsLate() && d.msg.InProgress() == nil }

// GiveBack gives the request back to the queue, which waits before it hands the request out. A late delivery does
// nothing: the queue has the request back already, or soon.
func (d *Delivery) GiveBack(wait time.Duration) error {
	switch {
	case d.IsLate():
		return nil
	case wait == 0:
		return d.msg.Nak()
	}
	return d.msg.NakWithDelay(wait)
}

// Queue hands out the requests of the queue. It is for one goroutine at a time.
type Queue struct {
	s        *Store
	stream   jetstream.Stream
	subject  string
	consumer jetstream.Consumer
	wait     time.Duration
}

// OpenQueue returns the queue, which hands a request out again when so much time has passed without a sign of life. It
// is not to be closed. For a manager alone it is new at each start, since checkDamage removes the consumer before: all
// requests that were not acknowledged come again at once.
func (s *Store) OpenQueue(ctx context.Context, wait time.Duration) (*Queue, error) {
	return s.openConsumer(ctx, s.queue, queueSubject, wait)
}

// openConsumer is OpenQueue for a subject of a stream.
func (s *Store) openConsumer(
	ctx context.Context, stream jetstream.Stream, subject string, wait time.Duration,
) (*Queue, error) {
	cfg := jetstream.ConsumerConfig{
		Durable: consumerName, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: wait, MaxAckPending: -1,
		MemoryStorage: true, // if its state is lost, all requests come again, as at the start
	}
	consumer, err := stream.CreateOrUpdateConsumer(ctx, cfg)
	if told, ok := errors.AsType[*jetstream.APIError](err); ok && told.ErrorCode == jetstream.JSErrCodeConsumerCreate {
		cfg.MemoryStorage = false // an earlier version has made it on the disk, and it has to stay there
		consumer, err = stream.CreateOrUpdateConsumer(ctx, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("open the queue: %w", err)
	}
	return &Queue{s, stream, subject, consumer, wait}, nil
}

// Next returns the next request of the queue. It waits for one until ctx ends.
//
// It pulls one request at a time: a request pulled ahead is lost if we stop. Consumer.Messages is not used: if a
// message arrives before its pull returns, it counts that message as still pending and stalls for two heartbeats.
func (q *Queue) Next(ctx context.Context) (*Delivery, error) {
	expiry := min(natscall.PullExpiry, q.wait/3) // so that a delivery is not late when it comes
	for {
		asked := time.Now()
		once, cancel := context.WithTimeout(ctx, expiry)
		msg, err := q.consumer.Next(
			jetstream.FetchContext(once), jetstream.FetchHeartbeat(min(natscall.PullHeartbeat, expiry/3)))
		cancel()
		if err == nil {
			return &Delivery{msg: msg, Asked: asked}, nil
		}
		none := errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
		if !none || ctx.Err() != nil {
			return nil, err
		}
	}
}

// Poll returns the next request of the queue if there is one now, and otherwise nil. It waits a second at most for
// servers that do not answer.
func (q *Queue) Poll() (*Delivery, error) {
	asked := time.Now()
	batch, err := q.consumer.FetchNoWait(1)
	if err != nil {
		return nil, err
	}
	for msg := range batch.Messages() {
		return &Delivery{msg: msg, Asked: asked}, nil
	}
	return nil, batch.Error()
}

// Mend opens the queue again if err says that the servers do not have it any more.
func (q *Queue) Mend(ctx context.Context, err error) {
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrConsumerDeleted) {
		if again, err := q.s.openConsumer(ctx, q.stream, q.subject, q.wait); err == nil {
			q.consumer = again.consumer
		}
	}
}

// LeaveQueue soon takes the request of a build whose result is stored out of the queue. d may be nil: a request that
// was not handed out yet is delivered later, and acknowledged then.
func (s *Store) LeaveQueue(r *Request, d *Delivery) { s.home.leaveQueue(r, d) }
