package buildlog

import "io"

// State is how far a log has got: with it, another Log goes on where the first one stopped. The zero value is that of
// an empty log. It is kept as JSON.
type State struct {
	// Stdout and Stderr are how many bytes of the job's output the log has, Events how many changes of the job's steps.
	Stdout int64 `json:"stdout,omitempty"`
	Stderr int64 `json:"stderr,omitempty"`
	Events int   `json:"events,omitempty"`
	// Lines is how many lines about the next change it has.
	Lines int `json:"lines,omitempty"`
	// Notices is how many bytes of the step runner's notices it has. An unfinished line does not count.
	Notices int64 `json:"notices,omitempty"`
	// Open says that the last line is unfinished, and Matched how many bytes of the step runner's mark it consists of.
	Open    bool `json:"open,omitempty"`
	Matched int  `json:"matched,omitempty"`
}

// StateWriter is a Writer that is told how far the log has got once text is written. A Log calls WriteState in place of
// Write.
type StateWriter interface {
	io.Writer
	WriteState(text []byte, after State) (int, error)
}

// Restore makes the state that of a log that stopped before. It is called before the first write.
func (l *Log) Restore(s State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	l.cursor = cursor{lineStart: !s.Open, matched: min(max(s.Matched, -1), len(mark)-1)}
}

// State returns how far the log will have got when all that was taken so far is written.
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

// Begin says that a job begins: the counts of its output and of its changes begin anew.
func (l *Log) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = State{Notices: l.state.Notices}
}

// WriteOutput is WriteUntil for output that State counts: that of the job's stderr or of its stdout.
func (l *Log) WriteOutput(done <-chan struct{}, p []byte, stderr bool) (int, error) {
	count := &l.state.Stdout
	if stderr {
		count = &l.state.Stderr
	}
	return l.write(done, p, count)
}

// Event takes text of the step runner about the next change of a step, and counts the change. Lines that the log has
// already are skipped.
func (l *Log) Event(done <-chan struct{}, text string) {
	r := &Remarks{log: l, done: done, wrote: func(int64) { l.state.Lines++ }, skip: l.State().Lines}
	_, _ = r.Write([]byte(text)) // never fails
	r.Flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Events++
	l.state.Lines = 0
}

// Notices returns Remarks for the step runner's notices, which State counts: text is written with WriteAt.
func (l *Log) Notices(done <-chan struct{}) *Remarks {
	return &Remarks{log: l, done: done, wrote: func(end int64) { l.state.Notices = end }}
}
