package pool

import (
	"cmp"
	"slices"
	"time"
)

// Stat is a snapshot of a pool.
type Stat struct {
	Keys     []KeyStat // sorted by key
	Leases   int       // leases out
	Waiting  int       // callers that wait in Acquire
	Dials    uint64    // calls of Config.Dial since New
	Failures uint64    // those that failed
}

// KeyStat is a snapshot of one key. Its counts begin anew when the pool has forgotten the key between.
type KeyStat struct {
	Key      Key
	Conns    []ConnStat // oldest first; at most one is not Draining
	Dialing  bool       // a dial is under way, or waits for its turn
	Waiting  int        // callers that wait for it
	Dials    uint64     // calls of Config.Dial
	Opened   uint64     // connections those made
	Failures int        // calls that failed since one last succeeded
	LastErr  error      // why the last of these failed, nil if none
	RetryAt  time.Time  // no call before, zero if none failed
}

// ConnStat is a snapshot of one connection.
type ConnStat struct {
	Since    time.Time // when it was dialed
	Leases   int       // leases out on it
	Draining bool      // it takes no new ones
	Cause    error     // why it is Draining, nil if it is not
}

// Stat returns a snapshot.
func (p *Pool[C]) Stat() Stat {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweepLocked()
	s := Stat{Keys: make([]KeyStat, 0, len(p.entries)), Dials: p.dials, Failures: p.failed}
	for _, e := range p.entries {
		k := e.statLocked()
		for _, c := range k.Conns {
			s.Leases += c.Leases
		}
		s.Waiting += k.Waiting
		s.Keys = append(s.Keys, k)
	}
	slices.SortFunc(s.Keys, func(a, b KeyStat) int { return cmp.Compare(a.Key, b.Key) })
	return s
}

func (e *entry[C]) statLocked() KeyStat {
	k := KeyStat{
		Key:      e.key,
		Dials:    e.dials,
		Opened:   e.opened,
		Failures: e.failures,
		LastErr:  e.lastErr,
		RetryAt:  e.retryAt,
	}
	if e.dial != nil {
		k.Dialing, k.Waiting = true, e.dial.waiters
	}
	for _, m := range e.members {
		k.Conns = append(k.Conns, ConnStat{Since: m.since, Leases: m.leases, Draining: m.outLocked(), Cause: m.cause})
	}
	return k
}
