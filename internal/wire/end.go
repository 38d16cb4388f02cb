package wire

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// What runs a script on a VM tells its end itself, apart from the output and from its own exit status: by a
// line on its standard output and on its standard error. The script cannot forge it, for the line has a key
// that arrived on standard input, and everything before the line is the script's:
//
//	0x1e stepmux-end KEY exit CODE
//	0x1e stepmux-end KEY fail STAGE TEXT
//
// Other words after the key are signs of life.
const endMark = "\x1estepmux-end "

// EndKeySize is the length of a key: hexadecimal digits.
const EndKeySize = 32

// maxEndLine bounds what may follow the mark on its line.
const maxEndLine = 4 << 10

// End is how a script ended, or why it could not be run.
type End struct {
	// Code is the exit code; 128 plus the signal's number if one ended it. It means nothing if Stage is set.
	Code int
	// Stage says what could not be done on the VM, in one word; empty if all could.
	Stage string
	// Text says why. It is foreign text.
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

// ParseEndKey returns s if it is a key.
func ParseEndKey(s string) (string, error) {
	if len(s) != EndKeySize || strings.Trim(s, "0123456789abcdef") != "" {
		return "", fmt.Errorf("the key is not %d hexadecimal digits", EndKeySize)
	}
	return s, nil
}

// EndScanner takes the line of an End out of a stream.
type EndScanner struct {
	mark []byte
	held []byte // what may be the start of a line with the key
	end  *End
}

// NewEndScanner returns a scanner for lines with this key.
func NewEndScanner(key string) *EndScanner { return &EndScanner{mark: []byte(endMark + key + " ")} }

// End returns the end once its line was scanned; what follows it is dropped.
func (s *EndScanner) End() (End, bool) {
	if s.end == nil {
		return End{}, false
	}
	return *s.end, true
}

// Scan takes the next bytes of the stream and returns those that are the script's, which may share p's
// memory. Some may be held back until the next call.
func (s *EndScanner) Scan(p []byte) []byte {
	if s.end != nil {
		return nil
	}
	if len(s.held) > 0 {
		p = append(s.held, p...)
		s.held = nil
	}
	var before []byte // a line that was taken out
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
		if s.end = parseEnd(string(line)); s.end != nil {
			return before
		}
		p = rest
	}
}

// Rest returns what is held back, at the stream's end.
func (s *EndScanner) Rest() []byte {
	held := s.held
	s.held = nil
	return held
}

// started returns how many of p's last bytes may be the start of a mark.
func (s *EndScanner) started(p []byte) int {
	tail := p[max(0, len(p)-len(s.mark)+1):]
	i := bytes.LastIndexByte(tail, s.mark[0]) // which is nowhere else in it
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

// parseEnd returns nil for a sign of life.
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
