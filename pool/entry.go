package pool

import "time"

// minSweep is the number of entries below which none is looked for to be forgotten.
const minSweep = 64

// entry is what the pool knows of one key. Pool.mu guards it, but for key and turn.
type entry[C Conn] struct {
	key  Key
	turn chan struct{} // holds one token while a dial may call Config.Dial

	current *member[C]   // in service, nil if none
	members []*member[C] // all connections not yet closed and without leases, oldest first
	dial    *dial[C]     // the one Acquire joins, nil if none
	dialers int          // goroutines of dials; those of dials that were given up included

	dials, opened uint64 // calls of Config.Dial, and connections they made

	failures int        // attempts failed since the last that did not
	lastErr  error      // of the last attempt, nil if it did not fail
	retryAt  time.Time  // no attempt before
	refused  *DialError // what every Acquire gets until retryAt: the last error was permanent
}

// addLocked makes an entry for a key that has none.
func (p *Pool[C]) addLocked(key Key) *entry[C] {
	if len(p.entries) >= p.sweepAt {
		p.sweepLocked()
		p.sweepAt = max(minSweep, 2*len(p.entries))
	}
	e := &entry[C]{key: key, turn: make(chan struct{}, 1)}
	p.entries[key] = e
	return e
}

// sweepLocked forgets keys that only the pacing of failures had kept. Called whenever the number of
// entries has doubled, it bounds them for a constant price per key.
func (p *Pool[C]) sweepLocked() {
	for _, e := range p.entries {
		p.forgetLocked(e)
	}
}

// forgetLocked removes an entry that holds nothing worth keeping. Failures are kept for RetryMax
// after the time at which the next attempt would have been allowed, so that the pause can grow.
func (p *Pool[C]) forgetLocked(e *entry[C]) {
	switch {
	case e.dial != nil, e.dialers > 0, len(e.members) > 0:
	case e.failures > 0 && time.Since(e.retryAt) < p.cfg.RetryMax:
	default:
		delete(p.entries, e.key)
	}
}
