package faults

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Each build writes numbered lines of one length, which begin with its ID: every prefix of them is known.
const (
	lineWidth  = 64 // with the newline
	numberSize = 10
)

// line returns the i-th line of a build's output, from 1.
func line(id string, i int) string {
	s := fmt.Sprintf("%s %0*d ", id, numberSize, i)
	return s + strings.Repeat(".", lineWidth-1-len(s)) + "\n"
}

// Text returns the build's script. The script notes its progress in the file ledger.
func (b *buildPlan) Text(ledger string) string { return strings.Join(b.parts(ledger), "") }

// parts returns the script in pieces, for the steps of a job.
func (b *buildPlan) parts(ledger string) []string {
	var all []string
	for i := range b.Bursts {
		all = append(all, b.part(i, ledger))
	}
	return all
}

// part returns the script's piece that writes the i-th burst. Each is a script by itself.
func (b *buildPlan) part(i int, ledger string) string {
	var s strings.Builder
	say := func(what string) { fmt.Fprintf(&s, "echo %s >>%s\n", what, ledger) }
	if i == 0 {
		say("started")
		if b.Children {
			s.WriteString("sleep 600 &\n(sleep 600 &)\nsetsid sh -c 'trap \"\" TERM; while :; do sleep 600; done' " +
				"2>/dev/null &\n")
		}
	}
	if b.Deaf {
		s.WriteString("trap '' TERM\n")
	}
	first, last := b.Lines*i/b.Bursts+1, b.Lines*(i+1)/b.Bursts
	if first <= last {
		to := ""
		if b.Stderr {
			to = " >&2"
		}
		format := strings.TrimSuffix(line(b.ID, 0), "\n")
		format = strings.Replace(format, strings.Repeat("0", numberSize), "%0"+strconv.Itoa(numberSize)+".0f", 1)
		fmt.Fprintf(&s, "seq -f '%s' %d %d%s || { echo broken $? >>%s; exit 99; }\n", format, first, last, to, ledger)
	}
	say("wrote " + strconv.Itoa(last))
	fmt.Fprintf(&s, "sleep %.3f\n", max(b.Pause, time.Millisecond).Seconds())
	if i == b.Bursts-1 {
		say("ending " + strconv.Itoa(b.Code))
		fmt.Fprintf(&s, "exit %d\n", b.Code)
	}
	return s.String()
}

// Steps returns the script as a job of several steps, in YAML.
func (b *buildPlan) Steps(ledger string) []byte {
	var s strings.Builder
	s.WriteString("run:\n")
	for i, part := range b.parts(ledger) {
		fmt.Fprintf(&s, "  - name: part_%d\n    script: |\n      %s\n", i,
			strings.ReplaceAll(strings.TrimSuffix(part, "\n"), "\n", "\n      "))
	}
	return []byte(s.String())
}
