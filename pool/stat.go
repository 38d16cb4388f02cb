package pool

import (
	"cmp"
	"slices"
	"time"
)

// Stat is a snapshot of a pool.
type Stat struct {
	Keys    []KeyStat // sorted by key
	Leases  int       // leases out
	Waiting int       // callers that wait in Acquire
	Dials   uint64    // calls of Config.Dial since New
}

// KeyStat is a snapshot of one key.
type KeyStat struct {
	Key     Key
	Conns   []ConnStat // oldest first; at most one is not Draining
	Dialing bool       // a dial is under way
	Waiting int        // callers that wait for it
}

// State describes the connection of a key.
type State string

// The states of a key.
const (
	None    State = "none"    // there was no connection, or it was closed
	Dialing State = "dialing" // a connection is being made
	Up      State = "up"      // a connection is in service
	Leaving State = "leaving" // the connection takes no new leases, and closes with its last one
)

// State returns the state of the newest connection.
func (k KeyStat) State() State {
	switch n := len(k.Conns); {
	case n > 0 && !k.Conns[n-1].Draining:
		return Up
	case k.Dialing:
		return Dialing
	case n > 0:
		return Leaving
	default:
		return None
	}
}

// ConnStat is a snapshot of one connection.
type ConnStat struct {
	Since    time.Time // when it was dialed
	Leases   int       // leases out on it
	Draining bool      // it takes no new leases
	Cause    error     // why it is Draining; nil otherwise
}

// Stat returns a snapshot.
func (p *Pool[C]) Stat() Stat {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stat{Keys: make([]KeyStat, 0, len(p.entries)), Dials: p.dials}
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
	k := KeyStat{Key: e.key}
	if e.dial != nil {
		k.Dialing, k.Waiting = true, e.dial.waiters
	}
	for _, c := range e.pooled {
		k.Conns = append(k.Conns, ConnStat{Since: c.since, Leases: c.leases, Draining: c.outLocked(), Cause: c.cause})
	}
	return k
}
