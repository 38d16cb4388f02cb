package pool

// entry is the pool's record of one key. Pool.mu guards its fields, except key and turn.
type entry[C Conn] struct {
	key  Key
	turn chan struct{} // holds one token while a dial may call Config.Dial

	current *pooled[C]   // in service, nil if none
	pooled  []*pooled[C] // all connections not yet closed and without leases, oldest first
	dial    *dial[C]     // the dial that Acquire joins, nil if there is no dial
	dialers int          // running goroutines of dials, including dials that were given up
}

// entryLocked returns the entry of a key, and creates it if necessary.
func (p *Pool[C]) entryLocked(key Key) *entry[C] {
	e := p.entries[key]
	if e == nil {
		e = &entry[C]{key: key, turn: make(chan struct{}, 1)}
		p.entries[key] = e
	}
	return e
}

// forgetLocked removes an entry that has neither connections nor dials.
func (p *Pool[C]) forgetLocked(e *entry[C]) {
	if e.dialers == 0 && len(e.pooled) == 0 {
		delete(p.entries, e.key)
	}
}
