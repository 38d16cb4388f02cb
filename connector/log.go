package connector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	defaultLogTimeout = 5 * time.Minute
	// logRoom is how much of a job's output may wait for the log, and at most how much it is given at once.
	logRoom = 64 << 10
	// remarkRoom is what there is beyond that for the step runner's own words.
	remarkRoom = 16 << 10
	// lastWords is how long a log that is closed in a hurry may take for the rest.
	lastWords = time.Second
)

// Log is a build's log. It joins what the job writes and what the step runner says, in the order in which they
// come, and passes them on to a Writer, one write at a time, of about 80 KiB at most.
//
// Nobody waits for that Writer for long. If it fails, or takes nothing for the log's timeout, the log has failed:
// all writes are refused, and the builds that write to it end with a [*LogError]. The one goroutine that writes
// lives while there is something to be written. If the Writer never returns, it stays behind, as long as the
// Writer does not; nothing waits for it and it writes no more.
//
// A line that begins with "step runner: " is the step runner's: each of its lines has that mark, and no control
// characters. A line of a job that begins like that is written as "step runner:| ". Nothing else is changed.
//
// It is safe for concurrent use.
type Log struct {
	w       io.Writer
	timeout time.Duration

	failed context.Context // ends when the log fails, with a *LogError
	fail   context.CancelCauseFunc

	mu      sync.Mutex    // guards the following
	queue   []byte        // to be written next
	pen     pen           // where the end of the queue is
	writing bool          // there is the goroutine
	more    chan struct{} // closed, and made anew, when the goroutine has taken the queue or ends
	closed  bool
}

// NewLog returns a Log that writes to w, which may take as long as timeout for one write; if zero, 5 minutes. The
// caller calls Close at the end; w stays the caller's.
func NewLog(w io.Writer, timeout time.Duration) *Log {
	if timeout == 0 {
		timeout = defaultLogTimeout
	}
	l := &Log{w: w, timeout: timeout, pen: pen{fresh: true}, more: make(chan struct{})}
	l.failed, l.fail = context.WithCancelCause(context.Background())
	return l
}

// logOf returns w as a Log, and what to call when nobody writes to it any more: a Log is its owner's, another
// writer gets one for the time.
func logOf(w io.Writer, timeout time.Duration) (*Log, func(context.Context)) {
	if l, ok := w.(*Log); ok {
		return l, func(context.Context) {}
	}
	l := NewLog(w, timeout)
	return l, l.Close
}

// endWithLog makes the failure of l the end of something, until stop is called.
func endWithLog(l *Log, end context.CancelCauseFunc) (stop func() bool) {
	return context.AfterFunc(l.failed, func() { end(l.failure()) })
}

// Write takes output of a job. It waits for room, and returns what is wrong with the log if it fails meanwhile,
// or a write before did. After Close it discards.
func (l *Log) Write(p []byte) (int, error) { return l.write(nil, p) }

// write is Write whose wait ctx.Done ends too, if that is not nil.
func (l *Log) write(done <-chan struct{}, p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		piece := p[:min(len(p), logRoom)]
		if err := l.put(done, len(piece), logRoom, func() { l.queue = l.pen.job(l.queue, piece) }); err != nil {
			return total, err
		}
		total += len(piece)
		p = p[len(piece):]
	}
	return total, nil
}

// remark takes a line of the step runner's own. It waits for room only while done is open.
func (l *Log) remark(done <-chan struct{}, line string) {
	// A log that has failed ends the build by itself.
	_ = l.put(done, len(mark)+len(line), logRoom+remarkRoom, func() { l.queue = l.pen.remark(l.queue, line) })
}

// put calls add, which lengthens the queue by n bytes or a few more, once there is room for them. It returns why it
// did not.
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
		go l.pass()
	}
	return nil
}

// failure returns why the log has failed, as a *LogError; nil if it has not.
func (l *Log) failure() error { return context.Cause(l.failed) }

// pass writes what is queued until there is no more.
func (l *Log) pass() {
	stalled := time.AfterFunc(l.timeout, func() {
		l.fail(&LogError{fmt.Errorf("it took nothing for %v", l.timeout)})
	})
	defer stalled.Stop()
	var text []byte
	for {
		l.mu.Lock()
		text, l.queue = l.queue, text[:0]
		over := len(text) == 0 || l.failed.Err() != nil
		if over {
			l.queue, l.writing = nil, false // an idle log holds no buffer
		}
		close(l.more)
		l.more = make(chan struct{})
		l.mu.Unlock()
		if over {
			return
		}
		stalled.Reset(l.timeout)
		n, err := l.w.Write(text)
		stalled.Stop()
		if err == nil && n < len(text) {
			err = io.ErrShortWrite
		}
		if err != nil {
			l.fail(&LogError{err})
		}
	}
}

// flush waits until all is written that was taken so far, and returns what is wrong with the log if it fails
// before that, or ctx's cause.
func (l *Log) flush(ctx context.Context) error {
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

// Close waits until what was taken is written, at most until ctx ends or the log has failed, and drops the rest. If
// ctx has ended before, it waits for a second. After it nothing is written any more, but for what the Writer, if it still has not returned, makes of its
// last write. It is idempotent.
func (l *Log) Close(ctx context.Context) {
	l.mu.Lock()
	l.closed = true
	close(l.more) // whoever waits for room
	l.more = make(chan struct{})
	l.mu.Unlock()
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		defer cancel()
	}
	if err := l.flush(ctx); err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = nil
}

// mark begins each line of the step runner.
const mark = "step runner: "

// pen knows where in a line a log is.
type pen struct {
	fresh bool // nothing is on the line
	like  int  // how much of mark the line consists of; -1 if it is another
}

// job appends output of a job to b. A carriage return begins a line too: what comes is shown in its place.
func (p *pen) job(b, output []byte) []byte {
	for len(output) > 0 {
		if p.like < 0 { // nothing to be watched up to the next line
			end := bytes.IndexAny(output, "\r\n")
			if end < 0 {
				return append(b, output...)
			}
			b, output = append(b, output[:end]...), output[end:]
		}
		c := output[0]
		output = output[1:]
		switch {
		case c == '\n' || c == '\r':
			p.fresh, p.like = c == '\n', 0
		case c != mark[p.like]: // never in a line that is another
			p.fresh, p.like = false, -1
		case p.like == len(mark)-1:
			b = append(b, '|')
			p.like = -1
		default:
			p.fresh = false
			p.like++
		}
		b = append(b, c)
	}
	return b
}

// remark appends a line of the step runner to b. It begins a line: what a job has left open ends.
func (p *pen) remark(b []byte, line string) []byte {
	if !p.fresh {
		b = append(b, '\n')
	}
	p.fresh, p.like = true, 0
	b = append(b, mark...)
	b = append(b, line...)
	return append(b, '\n')
}
