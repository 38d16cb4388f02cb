package relay

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/stepmux/stepmux/internal/wire"
)

// window counts how many bytes of a process's output may still be sent.
type window struct {
	mu   sync.Mutex // guards the following
	room int
	more chan struct{} // has an element when there may be more room
}

func newWindow() *window { return &window{room: wire.RelayProcessWindow, more: make(chan struct{}, 1)} }

// grow adds the manager's credit for n bytes.
func (w *window) grow(n int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room += n
	if w.room > wire.RelayProcessWindow {
		return fmt.Errorf("%w: a credit for more than was sent", wire.ErrRelayProtocol)
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
	return nil
}

// use counts n bytes that were sent.
func (w *window) use(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room -= n
}

// wait waits until there is room, and returns its size. It returns 0 once gone is closed.
func (w *window) wait(gone <-chan struct{}) int {
	for {
		w.mu.Lock()
		room := w.room
		w.mu.Unlock()
		if room > 0 {
			return room
		}
		select {
		case <-w.more:
		case <-gone:
			return 0
		}
	}
}

// carryOutput sends stdout and stderr to the manager until both have ended.
func (p *process) carryOutput() {
	var stderr sync.WaitGroup
	stderr.Go(func() { p.carry(p.stderr, wire.FrameStderr, p.room.stderr, p.scanner()) })
	p.carry(p.stdout, wire.FrameData, p.room.stdout, nil)
	_ = p.write(wire.AppendFrame(nil, wire.FrameEnd, nil)) // the manager may have gone
	stderr.Wait()
}

// carry sends the bytes of a pipe as frames of a kind, as the manager's window allows, until the pipe ends or its
// deadline has passed. When the manager has gone, carry still reads and drops the bytes, so that no writer blocks. look
// sees every byte before it is sent.
func (p *process) carry(pipe *os.File, kind wire.RelayFrame, w *window, look func([]byte)) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return // closed
	}
	wait, rest := raw.Read, 0
	for {
		room := w.wait(p.gone)
		most := min(cmp.Or(room, wire.MaxRelayFrame), wire.MaxRelayFrame) // without room the bytes are dropped below
		f, n, err := readFrame(wait, most)
		if errors.Is(err, os.ErrDeadlineExceeded) && rest == 0 {
			rest = pipeSize // send only the bytes that are in the pipe now
			wait = func(read func(uintptr) bool) error { return raw.Control(func(fd uintptr) { read(fd) }) }
			continue
		}
		if err != nil {
			return
		}
		if look != nil {
			look(f.payload()[:n])
		}
		if room > 0 {
			w.use(n)
			_ = p.send(f, kind, n) // after the stream's end the window stays empty
		}
		frames.Put(f)
		if rest > 0 {
			if rest -= n; rest <= 0 {
				return
			}
		}
	}
}

// scanner returns a function that looks for the ready marker on stderr, or nil if the request names no socket.
func (p *process) scanner() func([]byte) {
	if p.ready == nil {
		return nil
	}
	scan, told := new(wire.MarkerScanner), false
	return func(b []byte) {
		if told {
			return
		}
		_, _ = scan.Write(b) // never fails
		var path string
		if path, told = scan.Path(); told {
			if p.outlives && wire.SameBuildSocket(p.ready.path, path) {
				p.keepServe(path)
			}
			p.relay.sockets.listens(p.ready, path)
		}
	}
}

// input queues the bytes that the manager sends to a process's stdin.
type input struct {
	mu     sync.Mutex // guards the following
	queue  []byte
	owed   int  // bytes that came and were not credited yet
	due    int  // the part of them that stdin has taken
	ended  bool // the manager has ended stdin
	closed bool // the process takes no more
	more   chan struct{}
}

func (i *input) wakeLocked() {
	select {
	case i.more <- struct{}{}:
	default:
	}
}

// put queues b. A nil b is the end of stdin.
func (i *input) put(b []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.owed += len(b)
	switch {
	case i.ended:
		return fmt.Errorf("%w: more stdin after its end", wire.ErrRelayProtocol)
	case i.owed > wire.RelayProcessWindow:
		return fmt.Errorf("%w: more stdin than was granted", wire.ErrRelayProtocol)
	case b == nil:
		i.ended = true
	case !i.closed:
		i.queue = append(i.queue, b...)
	}
	i.wakeLocked()
	return nil
}

// close drops the queue and ends take.
func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed, i.queue = true, nil
	i.wakeLocked()
}

// take waits for input and returns the whole queue, or nil at the end. The queue continues in spare, a buffer to reuse.
func (i *input) take(spare []byte) []byte {
	for {
		i.mu.Lock()
		queue, over := i.queue, i.ended || i.closed
		if len(queue) > 0 {
			i.queue = spare[:0]
		} else {
			i.queue, spare = nil, nil // an idle process holds no buffer
		}
		i.mu.Unlock()
		if len(queue) > 0 {
			return queue
		}
		if over {
			return nil
		}
		<-i.more
	}
}

// through counts n bytes that stdin has taken, and returns the credit to send. It saves up credit to half a window.
func (i *input) through(n int) (credit int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.due += n; i.due < wire.RelayProcessWindow/2 {
		return 0
	}
	credit = i.due
	i.owed -= credit
	i.due = 0
	return credit
}

// giveInput queues b for the process's stdin. A nil b is its end.
func (p *process) giveInput(b []byte) error {
	if err := p.input.put(b); err != nil {
		return err
	}
	p.fed.Do(func() { p.feeder.Go(p.feed) })
	return nil
}

// feed writes the queue to stdin, and closes it at the end. If the process has closed its stdin, the bytes are dropped,
// so that the manager can go on.
func (p *process) feed() {
	defer p.stdin.Close()
	for queue := p.input.take(nil); queue != nil; queue = p.input.take(queue) {
		for part := range slices.Chunk(queue, wire.MaxRelayFrame) {
			_, _ = p.stdin.Write(part)
			if credit := p.input.through(len(part)); credit > 0 {
				_ = p.write(wire.RelayCredit{Kind: wire.FrameData, N: uint32(credit)}.Append(nil))
			}
		}
	}
}
