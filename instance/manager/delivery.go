package manager

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// delivery is a request that the queue has handed out to this manager, until it hands the request out again.
//
// JetStream looks at the place of the request alone: an InProgress, a Nak or a Term of an earlier delivery counts for
// the one that another manager has now. A manager that was stopped for a while, or cut off, must not send them. So
// there is no Term, and the others know how long the delivery is the latest one. Only an Ack may be late: it is sent
// once the record of the build has its result, or has expired, which holds for all deliveries.
type delivery struct {
	msg jetstream.Msg
	// until is when the queue may soon hand the request out again: fleet.keptUntil. If zero, that does no harm.
	until time.Time
}

// delivered returns the delivery in a message that the manager began to ask for at that time.
func (m *Manager) delivered(msg jetstream.Msg, asked time.Time) *delivery {
	return &delivery{msg: msg, until: m.fleet.keptUntil(asked)}
}

// isLate reports whether another manager may have the request.
func (d *delivery) isLate() bool { return !d.until.IsZero() && !time.Now().Before(d.until) }

// ack takes the request out of the queue: its build has ended.
func (d *delivery) ack() error { return d.msg.Ack() }

// inProgress tells the queue that the build is not lost. It reports whether it could, which a late delivery cannot.
func (d *delivery) inProgress() bool { return !d.isLate() && d.msg.InProgress() == nil }

// giveBack gives the request back to the queue, which waits before it hands the request out. A late delivery does
// nothing: the queue has the request back already, or soon.
func (d *delivery) giveBack(wait time.Duration) error {
	switch {
	case d.isLate():
		return nil
	case wait == 0:
		return d.msg.Nak()
	}
	return d.msg.NakWithDelay(wait)
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
