package relay

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
)

// inbox holds the output of one of a process's streams until it is read.
type inbox struct {
	more chan struct{} // has an element if there may be something new

	mu        sync.Mutex // guards the following
	buf       bytes.Buffer
	err       error // why no more comes
	owed      int   // bytes read since the last credit
	discarded bool
	claimed   bool // a goroutine takes the output
}

func newInbox() *inbox { return &inbox{more: make(chan struct{}, 1)} }

// put keeps output. A relay that exceeds the window breaks the protocol.
func (i *inbox) put(p []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil || i.buf.Len()+i.owed+len(p) > wire.RelayProcessWindow {
		return fmt.Errorf("%w: more output than was granted", wire.ErrRelayProtocol)
	}
	if i.discarded {
		i.owed += len(p) // never granted again: the process ends
		return nil
	}
	i.buf.Write(p)
	i.wakeLocked()
	return nil
}

// end says that no more comes. The first call decides.
func (i *inbox) end(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err == nil {
		i.err = err
	}
	i.wakeLocked()
}

// discard drops all output, also that to come.
func (i *inbox) discard() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.discarded = true
	i.buf = bytes.Buffer{}
}

func (i *inbox) wakeLocked() {
	select {
	case i.more <- struct{}{}:
	default:
	}
}

// read waits for output and returns some of it, and the credit that is due for it.
func (i *inbox) read(p []byte, stop <-chan struct{}) (n, credit int, err error) {
	for {
		i.mu.Lock()
		n, _ := i.buf.Read(p)
		credit, err := i.creditLocked(n), i.err
		left := i.buf.Len()
		i.mu.Unlock()
		switch {
		case n > 0 || len(p) == 0:
			return n, credit, nil
		case err != nil && left == 0:
			return 0, 0, err
		}
		select {
		case <-i.more:
		case <-stop:
			return 0, 0, channel.ErrStopped
		}
	}
}

// claim reports whether the caller is to take the output, as no other goroutine does.
func (i *inbox) claim() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	claimed := i.claimed
	i.claimed = true
	return !claimed
}

// take returns all output, the credit that is due, and the end if all was taken. If there is no output and no end, the
// claim has ended.
func (i *inbox) take() (data []byte, credit int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	data = i.buf.Bytes()
	i.buf = bytes.Buffer{}
	credit, err = i.creditLocked(len(data)), i.err
	i.claimed = len(data) > 0 || err != nil
	return data, credit, err
}

// creditLocked counts n bytes that were read and returns the credit that is due, in few large portions.
func (i *inbox) creditLocked(n int) int {
	i.owed += n
	if i.owed < wire.RelayProcessWindow/2 || i.err != nil {
		if i.buf.Len() == 0 && i.buf.Cap() > smallFrame {
			i.buf = bytes.Buffer{} // an idle process costs nothing
		}
		return 0
	}
	credit := i.owed
	i.owed = 0
	return credit
}
