package job

import (
	"fmt"
	"io"
	"sync"

	"github.com/stepmux/stepmux/remote/job/joblog"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// output is the way of what a job writes into its logs. Only the job's goroutine calls its methods.
type output struct {
	secrets mask.Set
	streams [2]io.Writer // behind the engine's masking
	merged  *merged      // nil if the job has no such log
	// recorder sums up the streams for a trace; nil if none is wanted.
	recorder *recording.Recorder
}

// connect sets the way into logs, of which the merged one may be missing. notices are lines for the latter.
func (o *output) connect(logs [3]*joblog.Log, notices []string) {
	if logs[Merged] != nil {
		o.merged = &merged{to: o.secrets.NewWriter(logs[Merged]), notices: notices}
	}
	for stream := range o.streams {
		var to io.Writer = logs[stream]
		if o.recorder != nil {
			to = o.recorder.Tap(stream, to)
		}
		if o.merged != nil {
			to = io.MultiWriter(to, o.merged)
		}
		o.streams[stream] = to
	}
}

// close lets what is held back into the logs.
func (o *output) close() error {
	if o.recorder != nil {
		o.recorder.Close()
	}
	if o.merged == nil {
		return nil
	}
	return o.merged.to.Close()
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
