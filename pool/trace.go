package pool

import "time"

// Trace is a set of hooks, each of which may be nil. They are called synchronously and with no lock
// held, from many goroutines at once: they return soon, and may call the pool, but for Acquire, Close
// and Shutdown, which could wait for the very goroutine that calls the hook.
//
// For one connection the order is DialStart, DialDone, Retire, Close.
type Trace struct {
	// DialStart is called before each call of Config.Dial. attempt counts from 1 within a dial.
	DialStart func(key Key, attempt int)
	// DialDone is called with the outcome of each call of Config.Dial. A connection that was dead on
	// arrival counts as failed.
	DialDone func(key Key, attempt int, took time.Duration, err error)
	// Acquire is called when Acquire is about to return; waited is 0 if it found a connection ready.
	Acquire func(key Key, waited time.Duration, err error)
	// Release is called when a lease has ended, by Release or Retire.
	Release func(key Key)
	// Retire is called when a connection has left service: cause is ErrIdle, ErrExpired, ErrClosed,
	// what Retire was given, or what the connection died of.
	Retire func(key Key, cause error)
	// Close is called when a connection has been closed; err is what its Close returned.
	Close func(key Key, err error)
}

func (t *Trace) dialStart(key Key, attempt int) {
	if t.DialStart != nil {
		t.DialStart(key, attempt)
	}
}

func (t *Trace) dialDone(key Key, attempt int, took time.Duration, err error) {
	if t.DialDone != nil {
		t.DialDone(key, attempt, took, err)
	}
}

func (t *Trace) acquire(key Key, waited time.Duration, err error) {
	if t.Acquire != nil {
		t.Acquire(key, waited, err)
	}
}

func (t *Trace) release(key Key) {
	if t.Release != nil {
		t.Release(key)
	}
}

func (t *Trace) retire(key Key, cause error) {
	if t.Retire != nil {
		t.Retire(key, cause)
	}
}

func (t *Trace) close(key Key, err error) {
	if t.Close != nil {
		t.Close(key, err)
	}
}
