package faults

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
)

// remarkMark begins the lines of a log that are the step runner's own.
const remarkMark = "step runner: "

// sink takes a build's log and compares it with the expected bytes as they come. It keeps at most one line.
type sink struct {
	id string

	mu          sync.Mutex // guards the following
	part        []byte     // a line that has not ended
	cut         []byte     // the begin of a line that a remark came in between
	interrupted bool       // the last line was cut, and the remark has not come
	lines       int        // whole ones, all as they should be
	bad         string     // the first that is not; empty if none
	remarks     []string   // the last of the step runner's own words
	gate        chan struct{}
}

func newSink(id string) *sink { return &sink{id: id} }

// Write takes a piece of the log. While the sink is blocked it takes nothing.
func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		piece, rest, ended := bytes.Cut(p, []byte{'\n'})
		s.part = append(s.part, piece...)
		p = rest
		if !ended {
			break
		}
		s.takeLocked()
	}
	return n, nil
}

// takeLocked takes the line in part.
func (s *sink) takeLocked() {
	text := string(s.part)
	s.part = s.part[:0]
	if rest, ok := strings.CutPrefix(text, remarkMark); ok {
		s.remarks = append(s.remarks, rest)
		s.remarks = s.remarks[max(len(s.remarks)-maxRemarks, 0):]
		s.interrupted = false
		return
	}
	if s.interrupted && s.bad == "" {
		s.bad = fmt.Sprintf("line %d of the log ends after %q", s.lines+1, s.cut)
	}
	if len(s.cut) > 0 {
		text = string(s.cut) + text
		s.cut = s.cut[:0]
	}
	want := line(s.id, s.lines+1)
	switch {
	case text+"\n" == want:
		s.lines++
	case text != "" && len(text) < len(want)-1 && strings.HasPrefix(want, text):
		s.cut = append(s.cut[:0], text...)
		s.interrupted = true // a remark follows, or it is wrong
	case s.bad == "":
		s.bad = fmt.Sprintf("line %d of the log is %.80q", s.lines+1, text)
	}
}

// maxRemarks bounds the remarks that are kept.
const maxRemarks = 8

// logState is the state of a build's log.
type logState struct {
	Lines   int    // whole lines, from the first, each as it should be
	Bad     string // what else there is
	Remarks []string
}

// state returns the state of the log so far. An unfinished line must be the start of the next expected one.
func (s *sink) state() logState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := logState{s.lines, s.bad, append([]string(nil), s.remarks...)}
	last := string(s.cut) + string(s.part)
	if st.Bad == "" && !strings.HasPrefix(line(s.id, s.lines+1), last) &&
		!strings.HasPrefix(string(s.part), remarkMark[:min(len(s.part), len(remarkMark))]) {
		st.Bad = fmt.Sprintf("the log ends in %.80q", last)
	}
	return st
}

// block lets Write take nothing until the function it returns is called.
func (s *sink) block() (unblock func()) {
	gate := make(chan struct{})
	s.mu.Lock()
	s.gate = gate
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.gate = nil
		s.mu.Unlock()
		close(gate)
	})
}
