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

	mu   sync.Mutex // guards the following
	line []byte     // an unfinished line
}

// Remarks returns Remarks for one stream. They wait for room in the log until done is closed.
func (l *Log) Remarks(done <-chan struct{}) *Remarks { return &Remarks{log: l, done: done} }

// Add takes text of the stream.
func (r *Remarks) Add(text []byte) {
	for len(text) > 0 {
		part, _, ended := bytes.Cut(text[:min(len(text), maxRemark)], []byte{'\n'})
		text = text[len(part):]
		if ended {
			text = text[1:]
		}
		r.mu.Lock()
		r.line = append(r.line, part...)
		var line []byte
		if ended || len(r.line) >= maxRemark {
			line, r.line = r.line, nil
		}
		r.mu.Unlock()
		r.put(line)
	}
}

// Flush ends an unfinished line.
func (r *Remarks) Flush() {
	r.mu.Lock()
	line := r.line
	r.line = nil
	r.mu.Unlock()
	r.put(line)
}

// put puts a line into the log unless it is blank.
func (r *Remarks) put(line []byte) {
	if text := printable(line); text != "" {
		r.log.remark(r.done, text)
	}
}

// printable returns foreign text as one line of printable characters, without the step runner's own prefix: the log
// marks the line.
func printable(line []byte) string {
	text := termtext.Line(strings.TrimRight(string(line), "\r"))
	return strings.TrimSpace(strings.TrimPrefix(text, "step-runner: "))
}
