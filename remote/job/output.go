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

// output is the way of what a job writes into its logs. Only the job's goroutine calls its methods.
type output struct {
	secrets mask.Set
	streams [2]*mask.Writer
	merged  *merged // nil if the job has no such log
	// taps sum up what goes into the logs, for a trace; nil if none is wanted.
	taps [2]*trace.Tap
}

// connect sets the way into logs, of which the merged one may be missing. notices are lines for the latter. traced
// tells that a trace is wanted.
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

// close lets what is held back into the logs.
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

// merged takes what both streams of a job write, and puts a line before each step. What comes of the
// streams is masked; it is masked again, as a secret may begin in one and end in the other.
type merged struct {
	mu      sync.Mutex // guards the following
	to      *mask.Writer
	inLine  bool     // the last line has no end yet
	notices []string // lines that follow the first step's
}

// Write takes a piece of one of the streams.
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

// begin tells that a step begins. The first line of a log is always one of ours: so no output of a job can
// pass for a log of another form, which readers tell by its first bytes.
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
	_, _ = m.writeLocked(text) // what fails comes out when the log is closed
}
