package alive

import (
	"sync/atomic"
	"time"
)

// epoch is a time with the monotonic clock.
var epoch = time.Now()

// Pulse keeps the time of the last byte from a peer. It is safe for concurrent use. The zero value says that no byte
// has come since the program started.
type Pulse struct{ last atomic.Int64 } // nanoseconds since epoch

// Beat records that a byte has come now.
func (p *Pulse) Beat() { p.last.Store(int64(time.Since(epoch))) }

// Heard returns the time of the last byte, for [Watch].
func (p *Pulse) Heard() time.Time { return epoch.Add(time.Duration(p.last.Load())) }
