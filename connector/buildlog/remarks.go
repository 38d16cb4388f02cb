package buildlog

import (
	"bytes"
	"strings"
	"sync"

	"github.com/stepmux/stepmux/internal/termtext"
)

// maxRemark bounds a line of the step runner, in bytes. A longer line is split.
const maxRemark = 2 << 10

// Remarks is a Writer that turns a stream of the step runner into the step runner's lines of a log.
type Remarks struct {
	log  *Log
	done <-chan struct{} // closed when writes shall not wait for the log any more

	// wrote is called, with the log locked, when the log has one more line; end is the stream's position after that
	// line. May be nil.
	wrote func(end int64)
	skip  int // how many lines the log already has

	mu   sync.Mutex // guards the following
	line []byte     // an unfinished line
	end  int64      // position in the stream: how many bytes were written
}

// Remarks returns Remarks for one stream. They wait for room in the log until done is closed.
func (l *Log) Remarks(done <-chan struct{}) *Remarks { return &Remarks{log: l, done: done} }

// Write takes text of the stream. It never fails: a failed log ends the build by itself.
func (r *Remarks) Write(text []byte) (int, error) {
	taken := len(text)
	for len(text) > 0 {
		part, _, ended := bytes.Cut(text[:min(len(text), maxRemark)], []byte{'\n'})
		text = text[len(part):]
		if ended {
			text = text[1:]
		}
		r.mu.Lock()
		r.line = append(r.line, part...)
		r.end += int64(len(part))
		if ended {
			r.end++
		}
		var line []byte
		whole, end := ended || len(r.line) >= maxRemark, r.end
		if whole {
			line, r.line = r.line, nil
		}
		r.mu.Unlock()
		if whole {
			r.put(line, end)
		}
	}
	return taken, nil
}

// WriteAt is Write for text at a given position of the stream. If the position has jumped, the unfinished line ends.
func (r *Remarks) WriteAt(text []byte, position int64) (int, error) {
	r.mu.Lock()
	gap := position != r.end
	r.mu.Unlock()
	if gap {
		r.Flush()
		r.mu.Lock()
		r.end = position
		r.mu.Unlock()
	}
	return r.Write(text)
}

// Flush ends an unfinished line.
func (r *Remarks) Flush() {
	r.mu.Lock()
	line, end := r.line, r.end
	r.line = nil
	r.mu.Unlock()
	if len(line) > 0 {
		r.put(line, end)
	}
}

// put writes a line, which ends at a position of the stream, to the log unless it is blank.
func (r *Remarks) put(line []byte, end int64) {
	text := printable(line)
	if text == "" {
		return
	}
	if r.skip > 0 {
		r.skip--
		return
	}
	r.log.remark(r.done, text, func() {
		if r.wrote != nil {
			r.wrote(end)
		}
	})
}

// printable returns untrusted text as one line of printable characters, without the step runner's own prefix: the log
// adds its own.
func printable(line []byte) string {
	text := termtext.Line(strings.TrimRight(string(line), "\r"))
	return strings.TrimSpace(strings.TrimPrefix(text, "step-runner: "))
}
