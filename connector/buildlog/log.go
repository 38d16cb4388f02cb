package buildlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"time"
)

const (
	// DefaultTimeout is how long one write of a Writer may take if no timeout is configured.
	DefaultTimeout = 5 * time.Minute
	// outputRoom is how many bytes of the job's output may wait for the Writer. Most writes have this size.
	outputRoom = 64 << 10
	// storedRoom replaces outputRoom for a StateWriter, whose every write waits for a disk.
	storedRoom = 512 << 10
	// remarkRoom is additional room for the step runner's lines.
	remarkRoom = 16 << 10
	// closeGrace is how long Close still writes if its context has already ended.
	closeGrace = time.Second
)

// Error reports that the build's log could not be written, which ended the build.
type Error struct{ Err error }

func (e *Error) Error() string { return "write build log: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Log is a build's log. It joins the job's output and the step runner's lines in the order in which they arrive, and
// passes them on to a Writer. It makes one write at a time, of at most about 80 KiB, or 528 KiB to a StateWriter.
//
// If the Writer fails, or takes longer than the log's timeout, the log has failed: it refuses all writes, and the
// builds that write to it end with an [*Error]. One goroutine writes, and lives while there is something to write. If
// the Writer never returns, this goroutine stays behind until it does; nothing waits for it, and it writes no more.
//
// Each line of the step runner begins with "step runner: " and has no control characters. If a line of a job begins
// like that, it is written as "step runner:| ". Nothing else is changed.
//
// It is safe for concurrent use.
type Log struct {
	w       io.Writer
	timeout time.Duration
	room    int // how many bytes of output may be in the queue

	failed context.Context // ends with an *Error when the log fails
	fail   context.CancelCauseFunc

	mu      sync.Mutex    // guards the following
	queue   []byte        // to be written next
	cursor  cursor        // at the end of the queue
	state   State         // without Open and Matched, which are the cursor's
	writing bool          // the goroutine is running
	more    chan struct{} // closed and replaced when the goroutine has taken the queue or ends
	closed  bool
}

// New returns a Log that writes to w. If w is nil, the log is discarded. One write may take as long as timeout; if
// zero, DefaultTimeout. The caller calls Close at the end; w stays the caller's.
func New(w io.Writer, timeout time.Duration) *Log {
	w, timeout = cmp.Or(w, io.Discard), cmp.Or(timeout, DefaultTimeout)
	l := &Log{w: w, timeout: timeout, room: outputRoom, cursor: cursor{lineStart: true}, more: make(chan struct{})}
	if _, ok := w.(StateWriter); ok {
		l.room = storedRoom
	}
	l.failed, l.fail = context.WithCancelCause(context.Background())
	return l
}

// Of returns w as a Log, and a function that ends its use. If w is a Log already, or the Writer of one of the others,
// that function does nothing; otherwise it closes the Log that Of made. Two Logs of one Writer would write to it at the
// same time.
func Of(w io.Writer, timeout time.Duration, others ...*Log) (*Log, func(context.Context)) {
	l, ok := w.(*Log)
	for _, other := range others {
		if reflect.ValueOf(w).Comparable() && w == other.w {
			l, ok = other, true
		}
	}
	if ok {
		return l, func(context.Context) {}
	}
	l = New(w, timeout)
	return l, l.Close
}

// OnFailure calls end with the log's error if the log fails before stop is called.
func (l *Log) OnFailure(end context.CancelCauseFunc) (stop func() bool) {
	return context.AfterFunc(l.failed, func() { end(l.failure()) })
}

// Write takes output of a job. It waits for room. If the log has failed, or fails during the wait, Write returns the
// Writer's error. After Close it discards.
func (l *Log) Write(p []byte) (int, error) { return l.WriteUntil(nil, p) }

// WriteUntil is Write that also stops waiting when done is closed.
func (l *Log) WriteUntil(done <-chan struct{}, p []byte) (int, error) {
	return l.write(done, p, &l.state.Output)
}

// write takes output of a job and adds its length to count. l.mu guards count.
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

// remark takes a line of the step runner and calls added, with l.mu held. It waits for room only until done is
// closed.
func (l *Log) remark(done <-chan struct{}, line string, added func()) {
	// The error is ignored: a failed log ends the build by itself.
	_ = l.put(done, len(mark)+len(line), l.room+remarkRoom, func() {
		l.queue = l.cursor.appendRemark(l.queue, line)
		added()
	})
}

// put waits for room for n bytes, then calls add, which appends about n bytes to the queue.
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
		return errors.Unwrap(l.failure()) // the Writer's own error
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

// failure returns an *Error that says why the log has failed, or nil if it works.
func (l *Log) failure() error { return context.Cause(l.failed) }

// drain writes the queue until it is empty.
func (l *Log) drain() {
	stalled := time.AfterFunc(l.timeout, func() {
		l.fail(&Error{fmt.Errorf("the writer took nothing for %v", l.timeout)})
	})
	defer stalled.Stop()
	write := func(text []byte, _ State) (int, error) { return l.w.Write(text) }
	switch w := l.w.(type) {
	case StateWriter:
		write = w.WriteState
	case OutputNoter:
		write = func(text []byte, after State) (int, error) {
			if after.HasOutput() {
				w.NoteOutput()
			}
			return w.Write(text)
		}
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

// Flush waits until everything taken so far is written. It returns the log's error if the log fails before that, or
// ctx's cause.
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

// Close waits until the queue is written, but no longer than until ctx ends or the log fails, and drops the rest. If
// ctx has already ended, it waits for one second. After Close nothing more is written, except that a Writer that has
// not returned yet may finish its last write. Idempotent.
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

// cursor is a position in a log's text.
type cursor struct {
	lineStart bool // the line is empty
	matched   int  // how many bytes of mark the line consists of; -1 if it consists of anything else
}

// appendOutput appends output of a job to b. A carriage return counts as the begin of a line: a terminal shows the
// text after it in place of the line.
func (c *cursor) appendOutput(b, output []byte) []byte {
	for len(output) > 0 {
		if c.matched < 0 { // no mark is possible before the next line
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

// appendRemark appends a line of the step runner to b. It first ends an unfinished line of the job.
func (c *cursor) appendRemark(b []byte, line string) []byte {
	if !c.lineStart {
		b = append(b, '\n')
	}
	c.lineStart, c.matched = true, 0
	return fmt.Appendf(b, "%s%s\n", mark, line)
}
