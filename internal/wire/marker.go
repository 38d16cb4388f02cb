package wire

import (
	"bytes"
	"strings"
)

// readyPrefix starts the line serve prints on stderr once it listens. GitLab Runner's own serve
// prints the same.
const readyPrefix = "step-runner is listening on socket "

// maxMarkerPath bounds the path after the marker, a trailing carriage return included. It is
// generous: a path that is too long for a socket must be reported, not overlooked.
const maxMarkerPath = 4096

// scanChunk bounds how much of a Write is scanned at once, and so the memory the scanner keeps.
const scanChunk = 4096

// ReadyLine returns the ready marker for path, with its newline.
func ReadyLine(path string) string { return readyPrefix + path + "\n" }

// MarkerScanner finds the ready marker in a byte stream that may hold other text: a login shell's
// greeting before it (even on the same line), diagnostics, a carriage return before the newline. It
// is an io.Writer that never fails and keeps a few KiB, however long the lines are and however the
// stream is cut into writes. After the first marker it only discards. The zero value is ready to
// use; it is not safe for concurrent use.
type MarkerScanner struct {
	buf   []byte // the tail that may be part of a marker; once matched, the path so far
	match bool   // buf holds the path
	found bool
	path  string
}

// Write scans p. It always returns len(p), nil.
func (s *MarkerScanner) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 && !s.found {
		chunk := p[:min(len(p), scanChunk)]
		var rest []byte
		if s.match {
			rest = s.scanPath(chunk)
		} else {
			rest = s.scanPrefix(chunk)
		}
		p = p[len(chunk)-len(rest):]
	}
	return n, nil
}

// Path returns the path of the first complete marker line, and whether there was one.
func (s *MarkerScanner) Path() (string, bool) { return s.path, s.found }

// scanPrefix looks for the prefix in the kept tail and p together and returns the rest of p.
func (s *MarkerScanner) scanPrefix(p []byte) []byte {
	kept := len(s.buf)
	s.buf = append(s.buf, p...)
	if i := bytes.Index(s.buf, []byte(readyPrefix)); i >= 0 {
		rest := p[i+len(readyPrefix)-kept:]
		s.buf, s.match = s.buf[:0], true
		return rest
	}
	s.keepTail()
	return nil
}

// keepTail keeps one byte less than the length of the prefix: a later marker cannot start earlier.
func (s *MarkerScanner) keepTail() {
	if keep := len(readyPrefix) - 1; len(s.buf) > keep {
		s.buf = append(s.buf[:0], s.buf[len(s.buf)-keep:]...)
	}
}

// scanPath collects the path up to its newline. A prefix that starts again within the "path" begins
// the marker again: "...on socket step-runner is listening on socket /b" is the marker of /b.
func (s *MarkerScanner) scanPath(p []byte) []byte {
	line, rest, ended := bytes.Cut(p, []byte{'\n'})
	s.buf = append(s.buf, line...)
	if i := bytes.LastIndex(s.buf, []byte(readyPrefix)); i >= 0 {
		s.buf = append(s.buf[:0], s.buf[i+len(readyPrefix):]...)
	}
	tooLong := len(s.buf) > maxMarkerPath
	switch {
	case ended:
		path := strings.TrimRight(string(s.buf), "\r")
		s.buf, s.match = s.buf[:0], false
		if !tooLong && strings.HasPrefix(path, "/") {
			s.path, s.found = path, true
			s.buf = nil
		}
	case tooLong:
		// Not a path, but a marker may start in these bytes.
		s.match = false
		s.keepTail()
	}
	return rest
}
