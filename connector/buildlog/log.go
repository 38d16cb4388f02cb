package buildlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

const (
	// DefaultTimeout is how long a Writer may take for one write if nothing else is configured.
	DefaultTimeout = 5 * time.Minute
	// outputRoom bounds the job's output that waits for the Writer, and the size of most writes.
	outputRoom = 64 << 10
	// storedRoom is outputRoom for a StateWriter, whose writes each wait for a disk.
	storedRoom = 512 << 10
	// remarkRoom is the extra room for the step runner's lines.
	remarkRoom = 16 << 10
	// closeGrace is the time for the rest of a log whose Close gets a context that has ended.
	closeGrace = time.Second
)

// Error says that the build's log could not be written, which ended the build.
type Error struct{ Err error }

func (e *Error) Error() string { return "write build log: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Log is a build's log. It joins the job's output and the step runner's lines in the order in which they come, and
// passes them on to a Writer, one write at a time, of about 80 KiB at most, to a StateWriter of 528 KiB.
//
// A Writer that fails, or takes nothing for the log's timeout, fails the log: all writes are refused, and the builds
// that write to it end with an [*Error]. One goroutine writes; it lives while there is something to write. If the
// Writer never returns, this goroutine stays behind as long as the Writer does; nothing waits for it and it writes no
// more.
//
// Each line of the step runner begins with "step runner: " and has no control characters. A line of a job that begins
// like that is written as "step runner:| ". Nothing else is changed.
//
// It is safe for concurrent use.
type Log struct {
	w       io.Writer
	timeout time.Duration
	room    int // in the queue, for output

	failed context.Context // ends with an *Error when the log fails
	fail   context.CancelCauseFunc

	mu      sync.Mutex    // guards the following
	queue   []byte        // to be written next
	cursor  cursor        // at the end of the queue
	state   State         // but for its Open and Matched, which are the cursor's
	writing bool          // the goroutine runs
	more    chan struct{} // closed, and made anew, when the goroutine has taken the queue or ends
	closed  bool
}

// New returns a Log that writes to w, which may take as long as timeout for one write. If timeout is zero,
// DefaultTimeout. The caller calls Close at the end; w stays the caller's.
func New(w io.Writer, timeout time.Duration) *Log {
	timeout = cmp.Or(timeout, DefaultTimeout)
	l := &Log{w: w, timeout: timeout, room: outputRoom, cursor: cursor{lineStart: true}, more: make(chan struct{})}
	if _, ok := w.(StateWriter); ok {
		l.room = storedRoom
	}
	l.failed, l.fail = context.WithCancelCause(context.Background())
	return l
}

// Of returns w as a Log and a function that ends its use: if w is a Log, that does nothing, else it closes the Log
// that Of made for w.
func Of(w io.Writer, timeout time.Duration) (*Log, func(context.Context)) {
	if l, ok := w.(*Log); ok {
		return l, func(context.Context) {}
	}
	l := New(w, timeout)
	return l, l.Close
}

// OnFailure calls end with the log's error if the log fails before stop is called.
func (l *Log) OnFailure(end context.CancelCauseFunc) (stop func() bool) {
	return context.AfterFunc(l.failed, func() { end(l.failure()) })
}

// Write takes output of a job. It waits for room and returns the Writer's error if the log has failed or fails
// meanwhile. After Close it discards.
func (l *Log) Write(p []byte) (int, error) { return l.WriteUntil(nil, p) }

// WriteUntil is Write that also stops waiting when done is closed.
func (l *Log) WriteUntil(done <-chan struct{}, p []byte) (int, error) {
	return l.write(done, p, new(int64))
}

// write takes output of a job and adds its length to count, which mu guards.
func (l *Log) write(done <-chan struct{}, p []byte, count *int64) (int, error) {
	total := 0
	for piece := range slices.Chunk(p, outputRoom) {
		err := l.put(done, len(piece), l.room, func() {
			l.queue = l.cursor.appendOutput(l.queue, piece)
			*count += int64(len(piece))
		})
		if err != nil {
			return total, err
		}
		total += len(piece)
	}
	return total, nil
}

// remark takes a line of the step runner and calls added, which mu guards. It waits for room only while done is open.
func (l *Log) remark(done <-chan struct{}, line string, added func()) {
	// A log that has failed ends the build by itself.
	_ = l.put(done, len(mark)+len(line), l.room+remarkRoom, func() {
		l.queue = l.cursor.appendRemark(l.queue, line)
		added()
	})
}

// put waits for room for n bytes, then calls add, which lengthens the queue by about that many.
func (l *Log) put(done <-chan struct{}, n, room int, add func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.failed.Err() == nil && len(l.queue)+n > room && len(l.queue) > 0 {
		more := l.more
		l.mu.Unlock()
		gaveUp := false
		select {
		case <-more:
		case <-l.failed.Done():
		case <-done:
			gaveUp = true
		}
		l.mu.Lock()
		if gaveUp {
			return context.Canceled
		}
	}
	switch {
	case l.failed.Err() != nil:
		return errors.Unwrap(l.failure()) // the Writer's own
	case l.closed:
		return nil
	}
	add()
	if !l.writing {
		l.writing = true
		go l.drain()
	}
	return nil
}

// failure returns why the log has failed, as an *Error; nil if it has not.
func (l *Log) failure() error { return context.Cause(l.failed) }

// drain writes the queue until it is empty.
func (l *Log) drain() {
	stalled := time.AfterFunc(l.timeout, func() {
		l.fail(&Error{fmt.Errorf("it took nothing for %v", l.timeout)})
	})
	defer stalled.Stop()
	write := func(text []byte, _ State) (int, error) { return l.w.Write(text) }
	if w, ok := l.w.(StateWriter); ok {
		write = w.WriteState
	}
	var text []byte
	for {
		l.mu.Lock()
		text, l.queue = l.queue, text[:0]
		state := l.stateLocked()
		over := len(text) == 0 || l.failed.Err() != nil
		if over {
			l.queue, l.writing = nil, false // an idle log holds no buffer
		}
		l.wakeLocked()
		l.mu.Unlock()
		if over {
			return
		}
		stalled.Reset(l.timeout)
		n, err := write(text, state)
		stalled.Stop()
		if err == nil && n < len(text) {
			err = io.ErrShortWrite
		}
		if err != nil {
			l.fail(&Error{err})
		}
	}
}

// wakeLocked wakes the calls that wait for room or for the end of the queue.
func (l *Log) wakeLocked() {
	close(l.more)
	l.more = make(chan struct{})
}

// Flush waits until all that was taken so far is written. It returns the log's error if the log fails before that,
// or ctx's cause.
func (l *Log) Flush(ctx context.Context) error {
	for {
		l.mu.Lock()
		writing, more := l.writing, l.more
		l.mu.Unlock()
		switch {
		case l.failed.Err() != nil:
			return l.failure()
		case !writing:
			return nil
		}
		select {
		case <-more:
		case <-l.failed.Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close waits until the queue is written, at most until ctx ends or the log has failed, and drops the rest. If ctx
// has ended before, it waits for a second. After Close nothing more is written, except that a Writer that still has
// not returned may go on with its last write. It is idempotent.
func (l *Log) Close(ctx context.Context) {
	l.mu.Lock()
	l.closed = true
	l.wakeLocked()
	l.mu.Unlock()
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
	}
	if l.Flush(ctx) != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.queue = nil
	}
}

// mark begins each line of the step runner.
const mark = "step runner: "

// cursor is a place in a log's text.
type cursor struct {
	lineStart bool // the line is empty
	matched   int  // the line consists of so many bytes of mark; -1 if it consists of anything else
}

// appendOutput appends output of a job to b. A carriage return begins a line too: a terminal shows the text after it
// in the place of the line.
func (c *cursor) appendOutput(b, output []byte) []byte {
	for len(output) > 0 {
		if c.matched < 0 { // nothing to watch for up to the next line
			end := bytes.IndexAny(output, "\r\n")
			if end < 0 {
				return append(b, output...)
			}
			b, output = append(b, output[:end]...), output[end:]
		}
		next := output[0]
		output = output[1:]
		switch {
		case next == '\n' || next == '\r':
			c.lineStart, c.matched = next == '\n', 0
		case next != mark[c.matched]: // matched is not negative here
			c.lineStart, c.matched = false, -1
		case c.matched == len(mark)-1:
			b = append(b, '|')
			c.matched = -1
		default:
			c.lineStart = false
			c.matched++
		}
		b = append(b, next)
	}
	return b
}

// appendRemark appends a line of the step runner to b. It ends an open line of the job first.
func (c *cursor) appendRemark(b []byte, line string) []byte {
	if !c.lineStart {
		b = append(b, '\n')
	}
	c.lineStart, c.matched = true, 0
	return fmt.Appendf(b, "%s%s\n", mark, line)
}
