package relay

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
)

// inbox holds the output of one stream of a process (stdout or stderr) until it is read.
type inbox struct {
	more chan struct{} // has an element if there may be something new

	mu        sync.Mutex // guards the following
	buf       bytes.Buffer
	err       error // why no more output comes
	owed      int   // bytes read since the last credit
	discarded bool
	claimed   bool // a goroutine is taking the output
}

func newInbox() *inbox { return &inbox{more: make(chan struct{}, 1)} }

// put keeps output. More output than the window allows is a violation of the protocol.
func (i *inbox) put(p []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil || i.buf.Len()+i.owed+len(p) > wire.RelayProcessWindow {
		return fmt.Errorf("%w: more output than was granted", wire.ErrRelayProtocol)
	}
	if i.discarded {
		i.owed += len(p) // no credit for these bytes: the process is being ended
		return nil
	}
	i.buf.Write(p)
	i.wakeLocked()
	return nil
}

// end marks the end of the output. Only the first call counts.
func (i *inbox) end(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err == nil {
		i.err = err
	}
	i.wakeLocked()
}

// discard drops all output, including later output.
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

// read waits for output and returns some of it, and the credit to send for it.
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

// claim makes the caller the one goroutine that takes the output. It returns false if another one does.
func (i *inbox) claim() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	claimed := i.claimed
	i.claimed = true
	return !claimed
}

// take returns all output, the credit to send for it, and the end if there is no more. If there is neither output nor
// end, it gives up the claim.
func (i *inbox) take() (data []byte, credit int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	data = i.buf.Bytes()
	i.buf = bytes.Buffer{}
	credit, err = i.creditLocked(len(data)), i.err
	i.claimed = len(data) > 0 || err != nil
	return data, credit, err
}

// creditLocked counts n bytes as read and returns the credit to send now. Credit is sent in few large portions.
func (i *inbox) creditLocked(n int) int {
	i.owed += n
	if i.owed < wire.RelayProcessWindow/2 || i.err != nil {
		if i.buf.Len() == 0 && i.buf.Cap() > smallFrame {
			i.buf = bytes.Buffer{} // an idle process holds no buffer
		}
		return 0
	}
	credit := i.owed
	i.owed = 0
	return credit
}
