package channel

import (
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
)

// past is a deadline that has passed, and the zero time is no deadline.
var past = time.Unix(0, 1)

// deadline is a time limit that may be changed while calls wait for it.
type deadline struct {
	mu     sync.Mutex // guards the following
	timer  *time.Timer
	passed chan struct{} // closed once the deadline has passed; replaced when the deadline then moves
}

// channel returns a channel that is closed once the deadline has passed, even if it is moved in the meantime.
func (d *deadline) channel() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

// set moves the deadline. Once the stream is closed, its deadline stays in the past.
func (d *deadline) set(t time.Time, closed <-chan struct{}) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if pause.Done(closed) {
		t, err = past, &closedError{"set deadline"}
	}
	if d.timer != nil && !d.timer.Stop() {
		<-d.passed // the timer closes it now, or has closed it
	}
	d.timer = nil
	if pause.Done(d.passed) {
		d.passed = make(chan struct{})
	}
	switch left := time.Until(t); {
	case t.IsZero():
	case left <= 0:
		close(d.passed)
	default:
		passed := d.passed
		d.timer = time.AfterFunc(left, func() { close(passed) })
	}
	return err
}
