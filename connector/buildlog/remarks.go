package buildlog

import (
	"bytes"
	"strings"
	"sync"

	"github.com/stepmux/stepmux/internal/termtext"
)

// maxRemark bounds a line of the step runner. A longer line becomes several.
const maxRemark = 2 << 10

// Remarks puts a stream of the step runner into a log as the step runner's lines.
type Remarks struct {
	log  *Log
	done <-chan struct{} // closed when nobody waits for the log any more

	// wrote is called with the log locked when it has a line more, with the stream's position behind that line. May be
	// nil.
	wrote func(end int64)
	skip  int // how many lines the log has already

	mu   sync.Mutex // guards the following
	line []byte     // an unfinished line
	end  int64      // how many bytes of the stream were written
}

// Remarks returns Remarks for one stream. They wait for room in the log until done is closed.
func (l *Log) Remarks(done <-chan struct{}) *Remarks { return &Remarks{log: l, done: done} }

// Write takes text of the stream. It never fails: a log that fails ends the build by itself.
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

// WriteAt is Write for text at a position of the stream. Bytes before it that were not written are missing.
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

// put puts a line that ends at a position of the stream into the log unless it is blank.
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

// printable returns foreign text as one line of printable characters, without the step runner's own prefix: the log
// marks the line.
func printable(line []byte) string {
	text := termtext.Line(strings.TrimRight(string(line), "\r"))
	return strings.TrimSpace(strings.TrimPrefix(text, "step-runner: "))
}
