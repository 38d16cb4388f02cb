package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// mostVMs bounds the number of VMs in a view.
	mostVMs = 8
	// viewEvery is how often a view is redrawn while nothing happens.
	viewEvery = time.Second
)

// view is the block of lines at the bottom of a terminal, below all text. One goroutine uses it.
type view struct {
	lines func(rows int) []string    // the lines to show; printable text
	size  func() (columns, rows int) // of the terminal
	shown []string                   // the lines on the terminal now
}

// drawn reports whether the view stands on the terminal.
func (v *view) drawn() bool { return v != nil && len(v.shown) > 0 }

// around returns text preceded by the sequence that removes the view and, if draw is true, followed by a new view.
func (v *view) around(text []byte, draw bool) []byte {
	if v == nil {
		return text
	}
	columns, rows := v.size()
	var b bytes.Buffer
	if v.drawn() {
		b.WriteString(v.clear(columns))
	}
	b.Write(text)
	v.shown = nil
	if draw {
		for _, line := range v.lines(rows) {
			v.shown = append(v.shown, fit(line, columns-1))
		}
		b.WriteString(strings.Join(v.shown, "\n"))
	}
	return b.Bytes()
}

// clear returns the sequence that removes the view from a terminal, which may have become narrower since the last
// drawing.
func (v *view) clear(columns int) string {
	height := 0
	for _, line := range v.shown {
		height += max(1, (width(line)+columns-1)/columns)
	}
	up := ""
	if height > 1 {
		up = fmt.Sprintf("\x1b[%dA", height-1)
	}
	return "\r" + up + "\x1b[J"
}

// fit cuts a line that is wider than a terminal.
func fit(line string, columns int) string {
	at := 0
	for i, c := range line {
		if at += width(string(c)); at > columns {
			return line[:i]
		}
	}
	return line
}

// width returns how many columns a text takes at most.
func width(text string) int {
	n := 0
	for _, c := range text {
		if n++; c >= 0x300 { // it may be a wide character
			n++
		}
	}
	return n
}

// terminalSize returns the size of a terminal, or a default if it is unknown.
func terminalSize(file *os.File) (columns, rows int) {
	columns, rows, err := term.GetSize(int(file.Fd()))
	if err != nil || columns < 2 || rows < 1 {
		return 80, 24
	}
	return columns, rows
}

// watch sets the number of builds, and the function that returns the state of their VMs.
func (r *reporter) watch(builds int, stat func() instance.Stat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total, r.stat = builds, stat
}

// view returns the lines of the view.
func (r *reporter) view(rows int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lines != nil {
		return r.lines(rows)
	}
	lines := []string{r.progressLocked()}
	if r.stat == nil {
		return lines
	}
	vms := r.stat().Instances
	longest := 0
	for _, vm := range vms {
		longest = max(longest, min(len(vm.ID), 24))
	}
	most := min(len(vms), mostVMs, max(rows/2-1, 0))
	for _, vm := range vms[:most] {
		line := fmt.Sprintf("%-*s %d/%d", longest, termtext.Cut(vm.ID, longest), vm.Used, vm.Capacity)
		if vm.State != instance.Ready {
			line += " " + string(vm.State)
		}
		if vm.Route.Start != "" {
			line += " " + string(vm.Route.Start)
		}
		lines = append(lines, line+r.latestLocked(vm))
	}
	if more := len(vms) - most; more > 0 && most > 0 {
		lines = append(lines, "and "+plural.Count(more, "more VM"))
	}
	return lines
}

// progressLocked returns the first line of the view.
func (r *reporter) progressLocked() string {
	waiting := r.total - r.done - len(r.running)
	line := fmt.Sprintf("%d of %s done, %d running, %d waiting, %d failed",
		r.done, plural.Count(r.total, "build"), len(r.running), waiting, r.failed)
	if took := time.Since(r.began); r.done > 0 && r.done < r.total && took > 0 {
		rate := float64(r.done) / took.Seconds()
		left := time.Duration(float64(r.total-r.done) / rate * float64(time.Second))
		line += fmt.Sprintf(", %.3g a second, %v left", rate, left.Round(time.Second))
	}
	return line
}

// latestLocked returns the newest line of the builds on a VM.
func (r *reporter) latestLocked(vm instance.VMStat) string {
	newest := lastLine{}
	for _, build := range vm.Builds {
		if log := r.logOf[build.ID]; log != nil {
			if line := log.last(); line.at.After(newest.at) {
				newest = line
			}
		}
	}
	if newest.text == "" {
		return ""
	}
	return "  " + newest.text
}

// lastLine is the newest line of a build's log.
type lastLine struct {
	text string // printable
	at   time.Time
}
