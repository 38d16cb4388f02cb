package wire

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// The guard that runs a script on a VM reports the script's end with a line on standard output and on standard error.
// The script cannot forge the line, because it has a key that arrived on standard input. All bytes before the line
// belong to the script:
//
//	0x1e stepmux-end KEY exit CODE
//	0x1e stepmux-end KEY fail STAGE TEXT
//
// A line with another word after the key is a sign of life.
const endMark = "\x1estepmux-end "

// EndKeySize is the length of a key in hexadecimal digits.
const EndKeySize = 32

// maxEndLine bounds the line after the mark.
const maxEndLine = 4 << 10

// End is the end of a script, or the reason why it could not be run.
type End struct {
	// Code is the exit code, or 128 plus the number of the signal that ended the script. It has no meaning if Stage is
	// set.
	Code int
	// Stage names the step of the guard that failed, in one word. It is empty if the script ran.
	Stage string
	// Text is the reason. It is untrusted text.
	Text string
}

// Append appends e as a line with its key.
func (e End) Append(b []byte, key string) []byte {
	if e.Stage == "" {
		return fmt.Appendf(b, "%s%s exit %d\n", endMark, key, e.Code)
	}
	text := strings.Join(strings.Fields(e.Text), " ")
	return fmt.Appendf(b, "%s%s fail %s %s\n", endMark, key, e.Stage, text[:min(len(text), maxEndLine/4)])
}

// ParseEndKey checks a key and returns it.
func ParseEndKey(s string) (string, error) {
	if len(s) != EndKeySize || strings.Trim(s, "0123456789abcdef") != "" {
		return "", fmt.Errorf("the key is not %d hexadecimal digits", EndKeySize)
	}
	return s, nil
}

// EndScanner finds the line of an End in a stream and removes it.
type EndScanner struct {
	mark []byte
	held []byte // possible start of a line with the key
	end  *End
	seen bool // a line with the key was scanned
}

// NewEndScanner returns a scanner for lines with this key.
func NewEndScanner(key string) *EndScanner { return &EndScanner{mark: []byte(endMark + key + " ")} }

// End returns the end once its line was scanned. The scanner drops the bytes after it.
func (s *EndScanner) End() (End, bool) {
	if s.end == nil {
		return End{}, false
	}
	return *s.end, true
}

// Begun reports whether a line with the key was scanned: the guard runs.
func (s *EndScanner) Begun() bool { return s.seen }

// Scan takes the next bytes of the stream and returns those of the script, which may share p's memory. It may hold back
// some bytes until the next call.
func (s *EndScanner) Scan(p []byte) []byte {
	if s.end != nil {
		return nil
	}
	if len(s.held) > 0 {
		p = append(s.held, p...)
		s.held = nil
	}
	var before []byte // bytes before a removed line
	for {
		i := bytes.Index(p, s.mark)
		if i < 0 {
			n := len(p) - s.started(p)
			s.held = bytes.Clone(p[n:])
			return join(before, p[:n])
		}
		before = join(before, p[:i])
		line, rest, ended := bytes.Cut(p[i+len(s.mark):], []byte{'\n'})
		if !ended && len(line) <= maxEndLine {
			s.held = bytes.Clone(p[i:])
			return before
		}
		s.seen = true
		if s.end = parseEnd(string(line)); s.end != nil {
			return before
		}
		p = rest
	}
}

// Rest returns the held-back bytes. Call it at the end of the stream.
func (s *EndScanner) Rest() []byte {
	held := s.held
	s.held = nil
	return held
}

// started returns how many of p's last bytes may be the start of a mark.
func (s *EndScanner) started(p []byte) int {
	tail := p[max(0, len(p)-len(s.mark)+1):]
	i := bytes.LastIndexByte(tail, s.mark[0]) // the mark has this byte only once
	if i < 0 || !bytes.HasPrefix(s.mark, tail[i:]) {
		return 0
	}
	return len(tail) - i
}

// join appends b to a without writing to the memory behind a.
func join(a, b []byte) []byte {
	if len(a) == 0 {
		return b
	}
	return append(a[:len(a):len(a)], b...)
}

// parseEnd parses the line after the mark. It returns nil for a sign of life.
func parseEnd(line string) *End {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "exit":
		if code, err := strconv.ParseUint(rest, 10, 8); err == nil {
			return &End{Code: int(code)}
		}
		return &End{Stage: "guard", Text: line}
	case "fail":
		stage, text, _ := strings.Cut(rest, " ")
		if stage == "" {
			stage = "guard"
		}
		return &End{Stage: stage, Text: text}
	default:
		return nil
	}
}
