package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/termtext"
)

// maxLine is the longest log line, in bytes. A longer line is split.
const maxLine = 64 << 10

// newestLine is how many bytes of a build's last line the view can show.
const newestLine = 256

// reporter shows a run: logs and results on their streams, progress on a terminal. It is safe for concurrent use. The
// caller calls close.
type reporter struct {
	json     bool
	terminal bool
	logs     *stream
	plain    bool    // make logs safe for a terminal
	out      *stream // results
	err      *stream // progress and summary; it may be the same stream as out
	began    time.Time

	mu       sync.Mutex              // guards the following
	logOf    map[string]*prefixed    // of builds that have not ended
	total    int                     // number of builds
	stat     func() instance.Stat    // nil before the run has VMs
	lines    func(rows int) []string // of the view, in place of those of builds; may be nil
	redraw   *time.Timer             // nil if there is no view
	running  map[string]bool         // running builds
	done     int
	failed   int
	rest     []string // builds that were not started because others had failed
	left     int      // number of builds that may have left something on their VM
	failures kinds
	remains  kinds // of builds that may have left something
}

// newReporter returns a reporter. output is text, raw or json. lost is called once if the logs cannot be written.
func newReporter(output string, out, err io.Writer, lost func(error)) *reporter {
	r := &reporter{
		json: output == "json", terminal: isTerminal(err), logOf: map[string]*prefixed{},
		running: map[string]bool{}, began: time.Now(),
	}
	var below *view
	if r.terminal {
		file, _ := err.(*os.File)
		below = &view{lines: r.view, size: func() (int, int) { return terminalSize(file) }}
	}
	ignore := func(error) {}
	if same := sameFile(out, err); same { // one stream keeps the order of their texts
		r.out = newStream("standard output", out, lost, below)
		r.err = r.out
	} else {
		if !r.json {
			ignore, lost = lost, ignore
		}
		r.out = newStream("standard output", out, ignore, nil)
		r.err = newStream("standard error", err, lost, below)
	}
	r.logs = r.out
	if r.json {
		r.logs = r.err
	}
	file, ok := r.logs.to.(*os.File)
	r.plain = ok && output != "raw" && term.IsTerminal(int(file.Fd()))
	if r.terminal {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.redraw = time.AfterFunc(viewEvery, func() {
			r.err.show(false)
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.redraw != nil {
				r.redraw.Reset(viewEvery)
			}
		})
	}
	return r
}

// sameFile reports whether two outputs are one file, pipe or terminal.
func sameFile(a, b io.Writer) bool {
	f, ok := a.(*os.File)
	g, also := b.(*os.File)
	if !ok || !also {
		return a == b
	}
	one, err := f.Stat()
	other, otherErr := g.Stat()
	return err == nil && otherErr == nil && os.SameFile(one, other) || isTerminal(a) && isTerminal(b)
}

func (r *reporter) started(build, _ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[build] = true
	r.drawLocked(false)
}

// ended shows the end of a build and, with JSON output, its result.
func (r *reporter) ended(report batch.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	file := ""
	var warnings []standalone.Problem
	if log := r.logOf[report.Build]; log != nil {
		file, warnings = log.file, log.warnings
	}
	delete(r.logOf, report.Build)
	delete(r.running, report.Build)
	r.done++
	switch {
	case report.Err == nil:
	case errors.Is(report.Err, batch.ErrFailures):
		r.rest = append(r.rest, report.Build)
	default:
		r.failed++
		if r.failures.addFailure(report, file) { // later failures of this kind are in the summary
			r.showLocked("%s: %v", placed(report, file), report.Err)
		}
	}
	if report.Cleanup != nil {
		text := fmt.Sprintf("clean-up on %s: %v", report.Instance, report.Cleanup)
		if r.remains.add(report, report.Build, text, "") {
			r.showLocked("%s: %s", report.Build, text)
		}
	}
	if len(report.Left) > 0 {
		r.left++
		if text := "may be left " + strings.Join(report.Left, "; "); r.remains.add(report, report.Build, text, "") {
			r.showLocked("%s: %s", report.Build, text)
		}
	}
	if r.json {
		b := jsonBuildOf(report, file)
		b.Warnings = warnings
		_ = writeJSON(r.out, b) // close reports lost text
	}
	r.drawLocked(r.done == r.total)
}

// showLocked shows a message, which may contain untrusted text.
func (r *reporter) showLocked(format string, args ...any) {
	fmt.Fprintln(r.err, termtext.Text(fmt.Sprintf(format, args...)))
}

// showLine shows a line of a result, which may contain untrusted text.
func (r *reporter) showLine(text string) { fmt.Fprintln(r.err, termtext.Line(text)) }

// watchLines sets the function that returns the lines of the view. It may not call the reporter.
func (r *reporter) watchLines(lines func(rows int) []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = lines
}

// draw requests a drawing of the view.
func (r *reporter) draw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drawLocked(false)
}

// drawLocked draws the view.
func (r *reporter) drawLocked(now bool) {
	if r.terminal {
		r.err.show(now)
	}
}

// say shows a line of text, which may be untrusted.
func (r *reporter) say(text string) { r.err.say([]byte(termtext.Text(text) + "\n")) }

// Write shows messages. It never waits: if the reader is too slow, messages are dropped.
func (r *reporter) Write(text []byte) (int, error) {
	r.err.say(text)
	return len(text), nil
}

// close waits for the readers as stream.close does. If results or logs are lost, it reports that as far as possible.
func (r *reporter) close(ctx, abort context.Context, patience time.Duration) error {
	r.mu.Lock()
	if r.redraw != nil {
		r.redraw.Stop()
		r.redraw = nil
	}
	r.mu.Unlock()
	lost := r.out.close(ctx, abort, patience)
	if r.err == r.out {
		return lost
	}
	if lost != nil {
		fmt.Fprintf(r.err, "stepmux: %v\n", lost)
	}
	if failed := r.err.close(ctx, abort, patience); r.json { // otherwise it had only messages
		lost = errors.Join(lost, failed)
	}
	return lost
}

// log returns the log of a build that runs a file. Each line is shown with the name of the build, and with that of the
// VM on which it is to run, if it is for one. warnings are about the file.
func (r *reporter) log(build, file, on string, warnings []standalone.Problem) io.WriteCloser {
	name := build
	if on != "" {
		name += " " + termtext.Line(on)
	}
	p := r.text(name)
	p.file, p.warnings = file, warnings
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logOf[build] = p
	return p
}

// about sets the name of the file of a build whose log others show, and the warnings about it.
func (r *reporter) about(build, file string, warnings []standalone.Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logOf[build] = &prefixed{file: file, warnings: warnings}
}

// text returns a log whose lines are shown with a name.
func (r *reporter) text(name string) *prefixed {
	return &prefixed{share: r.logs.share(), plain: r.plain, watched: r.terminal, prefix: []byte(name + " | ")}
}

// prefixed shows whole lines, each with the name of its build. Close may be called while a Write waits for the
// reader.
type prefixed struct {
	share   share
	plain   bool
	watched bool // last will be called
	prefix  []byte
	file    string // the build's
	// warnings are about the scripts in file, for its result.
	warnings []standalone.Problem

	mu     sync.Mutex // guards the following
	part   []byte     // an unfinished line
	newest []byte     // the beginning of the last finished line
	at     time.Time  // when newest came
}

func (p *prefixed) Write(text []byte) (int, error) {
	for rest := text; len(rest) > 0; {
		var lines []byte
		if lines, rest = p.lines(rest); len(lines) > 0 {
			if err := p.share.put(lines, true); err != nil {
				return len(text), err
			}
		}
	}
	return len(text), nil
}

// lines returns the complete lines of text in the form in which they are shown, and keeps an unfinished last line.
// rest is the part of text for which the build's share of the queue has no room.
func (p *prefixed) lines(text []byte) (shown, rest []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(text) > 0 && len(shown) < shareRoom/2 {
		line, after, ended := bytes.Cut(text, []byte{'\n'})
		text = after
		p.part = append(p.part, line...)
		if !ended && len(p.part) < maxLine {
			break
		}
		shown = append(shown, p.prefix...)
		if p.plain {
			shown = termtext.LogLine(shown, p.part)
		} else {
			shown = append(shown, p.part...)
		}
		shown = append(shown, '\n')
		if p.watched {
			p.newest = append(p.newest[:0], p.part[:min(len(p.part), newestLine)]...)
		}
		p.part = p.part[:0]
	}
	if p.watched && len(shown) > 0 {
		p.at = time.Now()
	}
	return shown, text
}

// last returns the newest line.
func (p *prefixed) last() lastLine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.newest) == 0 {
		return lastLine{}
	}
	return lastLine{string(p.prefix) + termtext.Line(string(p.newest)), p.at}
}

// Close shows an unfinished last line. It does not wait.
func (p *prefixed) Close() error {
	p.mu.Lock()
	open := len(p.part) > 0
	p.mu.Unlock()
	if !open {
		return nil
	}
	last, _ := p.lines([]byte{'\n'})
	return p.share.put(last, false)
}
