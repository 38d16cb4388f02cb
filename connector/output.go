package connector

import (
	"bytes"
	"strings"
	"sync"

	"github.com/stepmux/stepmux/internal/wire"
)

// maxTail bounds how much of serve's stderr is kept for an error message.
const maxTail = 2 << 10

// serveStderr takes what serve writes to its standard error: it watches for the ready marker, keeps
// the last lines for an error message, and passes all but the marker's line on to the log.
type serveStderr struct {
	log   *remarks
	ready chan string // receives the marker's path, once

	mu      sync.Mutex // guards the following
	scanner wire.MarkerScanner
	found   bool
	line    []byte // an unfinished line, kept back until the marker was seen
	tail    []byte
}

func newServeStderr(log *remarks) *serveStderr {
	return &serveStderr{log: log, ready: make(chan string, 1)}
}

// Write never fails: a log that cannot be written ends the build by itself.
func (s *serveStderr) Write(p []byte) (int, error) {
	s.mu.Lock()
	pass := s.takeLocked(p)
	s.mu.Unlock()
	s.log.write(pass)
	return len(p), nil
}

// takeLocked returns what of p, and of what was kept back, goes to the log now.
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
		case ended || len(s.line) > maxTail:
			s.keepLocked(s.line)
			pass = append(pass, s.line...)
			s.line = s.line[:0]
		}
	}
	return pass
}

func (s *serveStderr) keepLocked(p []byte) { s.tail = appendTail(s.tail, p) }

// lastLines returns the last of what serve said, as one line, for an error message.
func (s *serveStderr) lastLines() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return lastLines(append(s.tail[:len(s.tail):len(s.tail)], s.line...))
}

// appendTail appends p to tail and keeps the last maxTail bytes.
func appendTail(tail, p []byte) []byte {
	tail = append(tail, p[max(0, len(p)-maxTail):]...)
	if over := len(tail) - maxTail; over > 0 {
		tail = append(tail[:0], tail[over:]...)
	}
	return tail
}

// lastLines returns the last few lines of foreign text as one.
func lastLines(text []byte) string {
	const most = 5
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(string(text), "?")) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-most):], " | ")
}

// flush passes an unfinished line on, at the end.
func (s *serveStderr) flush() {
	s.mu.Lock()
	rest := s.line
	s.line = nil
	s.keepLocked(rest)
	s.mu.Unlock()
	s.log.write(rest)
	s.log.flush()
}
