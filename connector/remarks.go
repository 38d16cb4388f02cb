package connector

import (
	"bytes"
	"strings"
	"sync"
	"unicode"
)

// maxRemark bounds a line of the step runner in the log. The rest of a longer one is the next.
const maxRemark = 2 << 10

// remarks takes what comes on one of the step runner's streams and puts it into the log as lines of the step
// runner's own.
type remarks struct {
	log  *Log
	done <-chan struct{} // closed when nobody can wait for the log any more

	mu   sync.Mutex // guards the following
	line []byte     // an unfinished line
}

// write takes text.
func (r *remarks) write(text []byte) {
	for len(text) > 0 {
		part, _, ended := bytes.Cut(text[:min(len(text), maxRemark)], []byte{'\n'})
		text = text[len(part):]
		if ended {
			text = text[1:]
		}
		r.mu.Lock()
		r.line = append(r.line, part...)
		var line []byte
		if ended || len(r.line) >= maxRemark {
			line, r.line = r.line, nil
		}
		r.mu.Unlock()
		r.say(line)
	}
}

// flush takes an unfinished line as one.
func (r *remarks) flush() {
	r.mu.Lock()
	line := r.line
	r.line = nil
	r.mu.Unlock()
	r.say(line)
}

// say puts a line into the log, unless nothing is on it.
func (r *remarks) say(line []byte) {
	if text := harmless(line); text != "" {
		r.log.remark(r.done, text)
	}
}

// harmless returns foreign text as one line of which every character is shown as what it is. Its own mark the log
// has no need of.
func harmless(line []byte) string {
	text := strings.Map(func(c rune) rune {
		if c == '\t' {
			return ' '
		}
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(strings.TrimRight(string(line), "\r"), "?"))
	return strings.TrimSpace(strings.TrimPrefix(text, "step-runner: "))
}
