package connector

import (
	"bytes"
	"sync"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
)

// serveStderr takes serve's standard error: it finds the ready marker, keeps the last lines for an error message, and
// passes all lines but the marker's on to the log.
type serveStderr struct {
	log   *buildlog.Remarks
	ready chan string // receives the marker's path, once

	mu      sync.Mutex // guards the following
	scanner wire.MarkerScanner
	found   bool
	line    []byte // an unfinished line, held back until the marker is found
	tail    []byte
}

func newServeStderr(log *buildlog.Remarks) *serveStderr {
	return &serveStderr{log: log, ready: make(chan string, 1)}
}

// Write never fails: a log that cannot be written ends the build by itself.
func (s *serveStderr) Write(p []byte) (int, error) {
	s.mu.Lock()
	pass := s.takeLocked(p)
	s.mu.Unlock()
	s.log.Add(pass)
	return len(p), nil
}

// takeLocked returns the text for the log: p and the line held back so far, without the marker.
func (s *serveStderr) takeLocked(p []byte) []byte {
	if s.found {
		s.keepLocked(p)
		return p
	}
	var pass []byte
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		if ended {
			line = p[:len(line)+1]
		}
		p = rest
		_, _ = s.scanner.Write(line) // never fails
		s.line = append(s.line, line...)
		path, found := s.scanner.Path()
		switch {
		case found:
			s.found, s.line = true, nil
			s.ready <- path
			s.keepLocked(p)
			return append(pass, p...)
		case ended || len(s.line) > tail.MaxBytes:
			s.keepLocked(s.line)
			pass = append(pass, s.line...)
			s.line = s.line[:0]
		}
	}
	return pass
}

func (s *serveStderr) keepLocked(p []byte) { s.tail = tail.Append(s.tail, p) }

// lastLines returns the end of serve's output as one line, for an error message.
func (s *serveStderr) lastLines() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tail.Lines(append(s.tail[:len(s.tail):len(s.tail)], s.line...))
}

// flush passes an unfinished line on, at the end.
func (s *serveStderr) flush() {
	s.mu.Lock()
	rest := s.line
	s.line = nil
	s.keepLocked(rest)
	s.mu.Unlock()
	s.log.Add(rest)
	s.log.Flush()
}
