package job

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/stepmux/stepmux/remote/job/joblog"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// output carries a job's output into its logs, masked. Only the job's goroutine calls its methods.
type output struct {
	secrets mask.Set
	streams [2]*mask.Writer
	merged  *merged // nil if the job has no such log
	// taps sum up the bytes of the logs, for a trace; nil without one.
	taps [2]*trace.Tap
}

// connect opens the writers into logs, whose merged one may be nil. notices are lines for the merged log. traced says
// that a trace is wanted.
func (o *output) connect(logs [3]*joblog.Log, notices []string, traced bool) {
	if logs[Merged] != nil {
		o.merged = &merged{to: o.secrets.NewWriter(logs[Merged]), notices: notices}
	}
	for stream := range o.streams {
		var to io.Writer = logs[stream]
		if traced {
			o.taps[stream] = trace.NewTap(to)
			to = o.taps[stream]
		}
		if o.merged != nil {
			to = io.MultiWriter(to, o.merged)
		}
		o.streams[stream] = o.secrets.NewWriter(to)
	}
}

// close writes the text that masking has held back, and closes the writers.
func (o *output) close() error {
	var errs []error
	for _, w := range o.streams {
		if w != nil {
			errs = append(errs, w.Close())
		}
	}
	if o.merged != nil {
		errs = append(errs, o.merged.to.Close())
	}
	for _, tap := range o.taps {
		if tap != nil {
			tap.Close()
		}
	}
	return errors.Join(errs...)
}

// merged takes the masked output of both streams of a job, and writes a line before each step. It masks the output
// again, because a secret may begin in one stream and end in the other.
type merged struct {
	mu      sync.Mutex // guards the following
	to      *mask.Writer
	inLine  bool     // the last line has no end yet
	notices []string // lines that follow the first step's
}

// Write writes a piece of one of the streams.
func (m *merged) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writeLocked(p)
}

func (m *merged) writeLocked(p []byte) (int, error) {
	if len(p) > 0 {
		m.inLine = p[len(p)-1] != '\n'
	}
	return m.to.Write(p)
}

// begin writes the line of a step that begins. The first line of a log is always such a line: a reader recognises other
// forms of logs by their first bytes, and no output of a job can imitate one.
func (m *merged) begin(step string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var text []byte
	if m.inLine {
		text = append(text, '\n')
	}
	text = fmt.Appendf(text, "Running step %q\n", step)
	for _, n := range m.notices {
		text = append(text, n+"\n"...)
	}
	m.notices = nil
	_, _ = m.writeLocked(text) // closing the log returns the error
}
