package relay

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/alive"
	"github.com/stepmux/stepmux/internal/coalesce"
)

// linkWrite is how many bytes may wait for the carrier. Streams reserve room in half of it; the rest is for frames of
// a few bytes.
const linkWrite = 384 << 10

// errTakesNothing ends a relay that does not read its stdin.
var errTakesNothing = errors.New("the relay takes no input")

// link is both directions of the carrier. Writes to it do not block if the caller has reserved room: a goroutine
// passes them on, and ends with the carrier.
type link struct {
	carrier Duplex
	out     *coalesce.Writer
	pulse   alive.Pulse // of the carrier

	mu  sync.Mutex // guards the following
	err error      // why the link has failed
}

func newLink(carrier Duplex, stall time.Duration, wg *sync.WaitGroup) *link {
	l := &link{carrier: carrier}
	l.out = coalesce.New(writerFunc(func(p []byte) (int, error) {
		stalled := time.AfterFunc(stall, func() {
			l.setFailure(fmt.Errorf("%w for %v", errTakesNothing, stall))
			_ = l.out.Close() // always nil
			_ = carrier.Close()
		})
		defer stalled.Stop()
		return carrier.Write(p)
	}), linkWrite)
	wg.Go(func() {
		if l.out.Run() == nil {
			_ = carrier.CloseWrite() // an error means that the carrier has ended
		}
	})
	return l
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Read implements io.Reader. It returns when the carrier's Read does.
func (l *link) Read(p []byte) (int, error) {
	n, err := l.carrier.Read(p)
	if n > 0 {
		l.pulse.Beat()
	}
	if err != nil {
		l.setFailure(err)
	}
	return n, err
}

// setFailure keeps the first failure.
func (l *link) setFailure(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// failure returns why the link has failed, or nil if it works.
func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
