package job

import (
	"fmt"
	"io"
	"sync"

	"github.com/stepmux/stepmux/remote/job/joblog"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// output masks a job's output and writes it into the logs. Only the job's goroutine calls its methods.
type output struct {
	secrets mask.Set
	streams [2]io.Writer // the engine masks before it writes to them
	merged  *merged      // nil if the job has no such log
	// recorder records the streams for a trace. It is nil without a trace.
	recorder *recording.Recorder
}

// connect opens the writers into logs. notices are lines for the merged log.
func (o *output) connect(logs []*joblog.Log, notices []string) {
	if len(logs) > int(Merged) {
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

// close writes the text that masking has held back, and closes the writers.
func (o *output) close() error {
	if o.recorder != nil {
		o.recorder.Close()
	}
	if o.merged == nil {
		return nil
	}
	return o.merged.to.Close()
}

// merged receives the masked output of both streams of a job, and writes a line before each step. It masks the output
// again, because a secret may begin in one stream and end in the other.
type merged struct {
	mu      sync.Mutex // guards the following
	to      *mask.Writer
	inLine  bool     // the last line is not finished
	notices []string // written after the line of the first step
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

// begin writes the line of a step that begins. The first line of a log is always such a line. Readers recognise other
// forms of logs by their first bytes, so a job's output cannot imitate one.
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

// warn writes the warnings of a step that has ended.
func (m *merged) warn(step string, warnings []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var text []byte
	if m.inLine {
		text = append(text, '\n')
	}
	for _, w := range warnings {
		text = fmt.Appendf(text, "Warning: step %q: %s\n", step, w)
	}
	_, _ = m.writeLocked(text) // closing the log returns the error
}
