package action

import (
	"bytes"
	"io"
	"sync"
)

const (
	// maxCommand bounds a line that is read as a command, in bytes. A longer one is text.
	maxCommand = 1 << 20
	// maxBlanks bounds the spaces and tabs before a command.
	maxBlanks = 256
	// maxMatched bounds the part of a line that problem matchers get, in bytes.
	maxMatched = 8 << 10
)

// scanner passes a stream on, except for lines that are commands. It holds back the beginning of a line only while the
// line can still become a command. It is safe for concurrent use.
type scanner struct {
	to io.Writer
	// command handles a line, without its end. It returns the text to pass on in its place, or false if the line is not
	// a command.
	command func(line string) (text string, ok bool)
	// matches reports whether match must be called with each line.
	matches func() bool
	match   func(line string)

	mu     sync.Mutex // guards the following
	held   []byte     // the beginning of a line that may be a command
	inside bool       // the last line is text and has no end yet
	line   []byte     // the beginning of a line, for match
	closed bool
}

// Write passes p on.
func (s *scanner) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // from a process that outlived its step
		return s.to.Write(p)
	}
	from := 0 // the bytes before it were handled
	for i := 0; i < len(p); {
		if !s.inside && len(s.held) == 0 && !mayBegin(p[i]) {
			s.inside = true
		}
		end := bytes.IndexByte(p[i:], '\n') + 1
		next := i + end
		if end == 0 {
			next = len(p)
		}
		if s.inside {
			s.inside = end == 0
			i = next
			continue
		}
		if err := s.pass(p[from:i]); err != nil {
			return from, err
		}
		s.held = append(s.held, p[i:next]...)
		i, from = next, next
		if end > 0 || !isBeginning(s.held) || len(s.held) > maxCommand {
			s.inside = end == 0
			if err := s.release(); err != nil {
				return from, err
			}
		}
	}
	if err := s.pass(p[from:]); err != nil {
		return from, err
	}
	return len(p), nil
}

func mayBegin(c byte) bool { return c == ':' || c == '#' || c == ' ' || c == '\t' }

// isBeginning reports whether line, whose end is missing, can still become a command.
func isBeginning(line []byte) bool {
	rest := bytes.TrimLeft(line, " \t")
	if len(line)-len(rest) > maxBlanks {
		return false
	}
	for _, mark := range []string{"::", "##["} {
		n := min(len(mark), len(rest))
		if mark[:n] == string(rest[:n]) {
			return true
		}
	}
	return false
}

// release handles the line that was held back.
func (s *scanner) release() error {
	line := s.held
	s.held = nil
	if len(line) <= maxCommand && isBeginning(bytes.TrimRight(line, "\r\n")) {
		if text, ok := s.command(string(bytes.TrimRight(line, "\r\n"))); ok {
			if text == "" {
				return nil
			}
			_, err := io.WriteString(s.to, text+"\n")
			return err
		}
	}
	return s.pass(line)
}

// pass passes on text.
func (s *scanner) pass(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if s.matches() {
		for line := range bytes.Lines(p) {
			s.line = append(s.line, line[:min(len(line), maxMatched-min(len(s.line), maxMatched))]...)
			if line[len(line)-1] == '\n' {
				s.match(string(bytes.TrimRight(s.line, "\r\n")))
				s.line = s.line[:0]
			}
		}
	}
	_, err := s.to.Write(p)
	return err
}

// Close handles a last line without an end. Bytes that are written later are passed on unchanged.
func (s *scanner) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := s.release()
	if len(s.line) > 0 {
		s.match(string(s.line))
	}
	s.closed = true
	return err
}
