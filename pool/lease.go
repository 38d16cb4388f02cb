package pool

import (
	"cmp"
	"sync/atomic"
)

// Lease is a share of a connection. Release or Retire ends it; until then only Pool.Close and Pool.Sever close the
// connection. If the connection dies, its methods fail as they would without a pool. A Lease is safe for concurrent
// use.
type Lease[C Conn] struct {
	p     *Pool[C]
	c     *pooled[C]
	ended atomic.Bool
}

// Conn returns the connection. Do not close it, and do not use it once the lease has ended.
func (l *Lease[C]) Conn() C { return l.c.conn }

// Release ends the lease. It does not wait. After the first Release or Retire it does nothing.
func (l *Lease[C]) Release() { l.end(nil) }

// Retire ends the lease and takes its connection out of service because of err, which may be nil: no
// new leases, closed with its last one. A newer connection of the same key is left alone. Retire does
// not wait. After the first Release or Retire it does nothing.
func (l *Lease[C]) Retire(err error) { l.end(cmp.Or(err, errRetired)) }

// end ends the lease, and takes its connection out of service if cause is not nil.
func (l *Lease[C]) end(cause error) {
	if l.ended.Swap(true) {
		return
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if cause != nil {
		l.p.retireLocked(l.c, cause)
	}
	l.p.releaseLocked(l.c)
}
