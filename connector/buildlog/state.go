package buildlog

import "io"

// State is the position that a log has reached: with it, another Log continues where this one stopped. The zero value
// is that of an empty log. It is stored as JSON.
type State struct {
	// Output counts the bytes of output in the log that the step runner cannot repeat.
	Output int64 `json:"output,omitempty"`
	// Stdout and Stderr count the bytes of the job's output in the log, Events the changes of the job's steps.
	Stdout int64 `json:"stdout,omitempty"`
	Stderr int64 `json:"stderr,omitempty"`
	Events int   `json:"events,omitempty"`
	// Lines counts the lines about the next change that the log already has.
	Lines int `json:"lines,omitempty"`
	// Notices counts the bytes of the step runner's notices in the log, without an unfinished line.
	Notices int64 `json:"notices,omitempty"`
	// Open is true if the last line is unfinished. Matched is then how many bytes of the step runner's mark it
	// consists of.
	Open    bool `json:"open,omitempty"`
	Matched int  `json:"matched,omitempty"`
}

// StateWriter is a Writer that receives the log's position together with each text. A Log calls WriteState instead of
// Write.
type StateWriter interface {
	io.Writer
	WriteState(text []byte, after State) (int, error)
}

// OutputNoter is a Writer that a Log tells of the job's output: it calls NoteOutput before each text once the log has
// some. Lines about the build do not count.
type OutputNoter interface {
	io.Writer
	NoteOutput()
}

// HasOutput reports whether the log has output of the job.
func (s State) HasOutput() bool { return s.Output > 0 || s.Stdout > 0 || s.Stderr > 0 }

// Restore continues the state of an earlier log. Call it before the first write.
func (l *Log) Restore(s State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	l.cursor = cursor{lineStart: !s.Open, matched: min(max(s.Matched, -1), len(mark)-1)}
}

// State returns the log's position once everything taken so far is written.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stateLocked()
}

func (l *Log) stateLocked() State {
	s := l.state
	s.Open, s.Matched = !l.cursor.lineStart, l.cursor.matched
	return s
}

// Begin starts a job: the counts of its output and of its changes restart at zero.
func (l *Log) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = State{Notices: l.state.Notices}
}

// WriteOutput is WriteUntil for output that State counts, of the job's stderr or stdout.
func (l *Log) WriteOutput(done <-chan struct{}, p []byte, stderr bool) (int, error) {
	count := &l.state.Stdout
	if stderr {
		count = &l.state.Stderr
	}
	return l.write(done, p, count)
}

// Event takes the step runner's text about the next change of a step, and counts the change. Lines that the log
// already has are skipped.
func (l *Log) Event(done <-chan struct{}, text string) {
	r := &Remarks{log: l, done: done, wrote: func(int64) { l.state.Lines++ }, skip: l.State().Lines}
	_, _ = r.Write([]byte(text)) // never fails
	r.Flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Events++
	l.state.Lines = 0
}

// Notices returns Remarks for the step runner's notices, which State counts. Use WriteAt to write to it.
func (l *Log) Notices(done <-chan struct{}) *Remarks {
	return &Remarks{log: l, done: done, wrote: func(end int64) { l.state.Notices = end }}
}
