package pool

import "time"

// Trace is a set of hooks, each of which may be nil. They are called synchronously and with no lock
// held, from many goroutines at once. They return soon, and may call the pool, but for Acquire, Close
// and Shutdown, which could wait for the very goroutine that calls the hook.
//
// For one connection the order is Retire, Close.
type Trace struct {
	// Acquire is called when Acquire is about to return; waited is 0 if it found a connection ready.
	Acquire func(key Key, waited time.Duration, err error)
	// Release is called when a lease has ended, by Release or Retire.
	Release func(key Key)
	// Retire is called when a connection has left service: cause is ErrIdle, ErrExpired, ErrClosed,
	// the argument of Retire, or the error with which the connection died.
	Retire func(key Key, cause error)
	// Close is called when a connection has been closed; err is the result of its Close.
	Close func(key Key, err error)
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
