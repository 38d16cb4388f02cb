package gitlabtest

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Log is a trace as the pages of the server show it.
type Log struct {
	// Text has the lines without their times, and without the marks of sections.
	Text string
	// Sections are the names of the sections, in their order.
	Sections []string
}

var (
	entry   = regexp.MustCompile(`^(\S{27}) (\d\d[OE])([ +])`)
	section = regexp.MustCompile("^section_(start|end):(\\d+):([a-z0-9_]+)\r\x1b\\[0K$")
)

// ReadLog reads a trace whose lines begin with their times, as GitLab Runner 19 writes them. It fails at a line without
// a time, at one that goes on without a begin, and at a section that does not end.
func ReadLog(trace []byte) (*Log, error) {
	log := &Log{}
	var lines []string
	seen, open := map[string]bool{}, ""
	for line := range strings.Lines(string(trace)) {
		m := entry.FindStringSubmatch(line)
		if m == nil || !strings.HasSuffix(line, "\n") {
			return nil, fmt.Errorf("not a line with its time: %q", line)
		}
		if _, err := time.Parse("2006-01-02T15:04:05.000000Z", m[1]); err != nil {
			return nil, err
		}
		stream, goesOn, body := m[2], m[3] == "+", line[len(m[0]):len(line)-1]
		if goesOn && !seen[stream] {
			return nil, fmt.Errorf("it goes on, and has not begun: %q", line)
		}
		seen[stream] = true
		if s := section.FindStringSubmatch(body); s != nil {
			switch {
			case s[1] == "start" && open == "":
				log.Sections, open = append(log.Sections, s[3]), s[3]
			case s[1] == "end" && open == s[3]:
				open = ""
			default:
				return nil, fmt.Errorf("in the section %q: %q", open, line)
			}
			continue
		}
		if goesOn && stream != "00O" { // those of the runner follow marks of sections
			lines[len(lines)-1] += body
			continue
		}
		lines = append(lines, body)
	}
	if open != "" {
		return nil, fmt.Errorf("the section %q does not end", open)
	}
	log.Text = strings.Join(append(lines, ""), "\n")
	return log, nil
}
