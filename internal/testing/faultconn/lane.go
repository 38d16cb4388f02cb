package faultconn

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// segmentSize is the largest piece that arrives at once. Smaller pieces make a limited bandwidth smoother.
const segmentSize = 16 << 10

// lane is one direction of a connection: a queue of segments, each with the time of its arrival.
type lane struct {
	limit int // bytes

	mu        sync.Mutex // guards the following
	changed   sync.Cond  // the state has changed, or a segment or deadline is due
	delay     time.Duration
	bandwidth int // bytes per second, or 0
	queue     []segment
	size      int       // bytes in queue
	clear     time.Time // at which the last byte of queue has left the sender
	stalled   bool
	finished  bool  // no more pushes
	failed    error // no more pushes or pops

	popDeadline, pushDeadline deadline
	arrival                   *time.Timer // wakes for the first segment of queue; may be nil
}

// segment arrives as a whole: bytes, or the end of the stream.
type segment struct {
	left time.Time // at which its last byte leaves the sender
	due  time.Time
	data []byte
	err  error // if not nil, the last segment, without data
}

// deadline is one of net.Conn's deadlines.
type deadline struct {
	at    time.Time   // zero for no deadline
	timer *time.Timer // may be nil
}

func newLane(c Config) *lane {
	l := &lane{delay: c.Delay, bandwidth: c.Bandwidth, limit: c.Buffer}
	l.changed.L = &l.mu
	return l
}

// push sends p, waiting for room.
func (l *lane) push(p []byte) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.failed != nil:
			return n, l.failed
		case l.finished:
			return n, net.ErrClosed
		case l.pushDeadline.passed():
			return n, os.ErrDeadlineExceeded
		case n == len(p):
			return n, nil
		case l.size >= l.limit:
			l.changed.Wait()
			continue
		}
		piece := p[n:min(len(p), n+segmentSize, n+l.limit-l.size)]
		l.sendLocked(segment{data: append([]byte(nil), piece...)})
		n += len(piece)
	}
}

// end makes pop return err after all bytes that were pushed.
func (l *lane) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sendLocked(segment{err: err})
}

// sendLocked queues s with its time of arrival: the time to send it and the delay.
func (l *lane) sendLocked(s segment) {
	if now := time.Now(); l.clear.Before(now) {
		l.clear = now
	}
	l.leaveLocked(&s, l.delay)
	l.queue = append(l.queue, s)
	l.size += len(s.data)
	l.changed.Broadcast()
}

// leaveLocked sets the times of s, which leaves the sender after all others.
func (l *lane) leaveLocked(s *segment, delay time.Duration) {
	if l.bandwidth > 0 {
		l.clear = l.clear.Add(time.Duration(len(s.data)) * time.Second / time.Duration(l.bandwidth))
	}
	s.left, s.due = l.clear, l.clear.Add(delay)
}

// pop waits for bytes and reads them. After finish it returns io.EOF when all have arrived.
func (l *lane) pop(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.failed != nil:
			return 0, l.failed
		case l.finished && l.stalled:
			return 0, net.ErrClosed
		case l.popDeadline.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case l.finished && len(l.queue) == 0:
			return 0, io.EOF
		}
		if n, err := l.takeLocked(p); n > 0 || err != nil {
			return n, err
		}
		l.changed.Wait()
	}
}

// takeLocked takes the bytes that have arrived, and sets the timer that wakes pop for the next.
func (l *lane) takeLocked(p []byte) (n int, err error) {
	for !l.stalled && n < len(p) && len(l.queue) > 0 {
		head := &l.queue[0]
		if wait := time.Until(head.due); wait > 0 {
			if n == 0 {
				l.wakeAfterLocked(wait)
			}
			break
		}
		if head.err != nil {
			if n == 0 {
				err = head.err
			}
			break
		}
		k := copy(p[n:], head.data)
		head.data = head.data[k:]
		n += k
		if len(head.data) == 0 {
			l.queue = l.queue[1:]
		}
	}
	if n > 0 {
		l.size -= n
		l.changed.Broadcast()
	}
	return n, err
}

func (l *lane) wakeAfterLocked(wait time.Duration) {
	if l.arrival != nil {
		l.arrival.Stop()
	}
	l.arrival = time.AfterFunc(wait, l.wake)
}

// wake makes push and pop look at the clock again.
func (l *lane) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed.Broadcast()
}

// stall starts or stops holding back arriving bytes.
func (l *lane) stall(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled = on
	l.changed.Broadcast()
}

// reshape changes the delay of later bytes, and the bandwidth of all that have not left the sender.
func (l *lane) reshape(delay time.Duration, bandwidth int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay, l.bandwidth = delay, bandwidth
	now := time.Now()
	l.clear = now
	for i := range l.queue {
		if s := &l.queue[i]; s.left.After(now) {
			l.leaveLocked(s, s.due.Sub(s.left))
		}
	}
	l.changed.Broadcast()
}

// distance returns how long a byte takes.
func (l *lane) distance() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delay
}

// finish ends the pushes. Queued bytes can still be popped.
func (l *lane) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished = true
	l.changed.Broadcast()
}

// fail ends pushes and pops with err and drops the queue. Only the first call counts.
func (l *lane) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = err
	}
	l.queue, l.size = nil, 0
	if l.arrival != nil {
		l.arrival.Stop()
	}
	l.popDeadline.stop()
	l.pushDeadline.stop()
	l.changed.Broadcast()
}

// setDeadline sets one of the lane's deadlines.
func (l *lane) setDeadline(d *deadline, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.stop()
	d.at = at
	if !at.IsZero() && l.failed == nil {
		d.timer = time.AfterFunc(time.Until(at), l.wake)
	}
	l.changed.Broadcast()
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
}
