package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/termtext"
)

// maxLine is the longest log line, in bytes. A longer line is shown in parts.
const maxLine = 64 << 10

// newestLine is how many bytes of a build's last line the view can show.
const newestLine = 256

// reporter shows a run: logs and results on their streams, progress on a terminal. Its methods are safe for concurrent
// use. The caller calls close.
type reporter struct {
	json     bool
	terminal bool
	logs     *stream
	plain    bool    // logs are made harmless for a terminal
	out      *stream // results
	err      *stream // progress and summary; it may be out
	began    time.Time

	mu       sync.Mutex           // guards the following
	logOf    map[string]*prefixed // of builds that have not ended
	total    int                  // builds
	stat     func() instance.Stat // nil before the run has VMs
	redraw   *time.Timer          // nil if there is no view
	running  map[string]bool      // builds
	done     int
	failed   int
	left     int // builds of which something may be left on their VM
	failures failures
}

// newReporter returns a reporter whose output is text, raw or json. lost is called once if the logs cannot be written.
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
	if same := sameFile(out, err); same { // their texts keep their order
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

// ended shows the end of a build and, as JSON, its result.
func (r *reporter) ended(report batch.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	file := ""
	if log := r.logOf[report.Build]; log != nil {
		file = log.file
	}
	delete(r.logOf, report.Build)
	delete(r.running, report.Build)
	r.done++
	if report.Err != nil {
		r.failed++
		if r.failures.add(report, file) { // the summary has the others
			r.showLocked("%s: %v", placed(report, file), report.Err)
		}
	}
	if report.Cleanup != nil {
		r.showLocked("%s: clean-up on %s: %v", report.Build, report.Instance, report.Cleanup)
	}
	if len(report.Left) > 0 {
		r.left++
		r.showLocked("%s: may be left on %s: %s", report.Build, report.Instance, strings.Join(report.Left, "; "))
	}
	if r.json {
		_ = writeJSON(r.out, jsonBuildOf(report, file)) // close tells of lost text
	}
	r.drawLocked(r.done == r.total)
}

// showLocked shows a message, which may have foreign text in it.
func (r *reporter) showLocked(format string, args ...any) {
	fmt.Fprintln(r.err, termtext.Text(fmt.Sprintf(format, args...)))
}

// drawLocked draws the view.
func (r *reporter) drawLocked(now bool) {
	if r.terminal {
		r.err.show(now)
	}
}

// say shows a line of text, which may be foreign.
func (r *reporter) say(text string) { r.err.say([]byte(termtext.Text(text) + "\n")) }

// Write shows messages. It never waits: if nobody takes them, some are dropped.
func (r *reporter) Write(text []byte) (int, error) {
	r.err.say(text)
	return len(text), nil
}

// close waits for the readers as stream.close does. If results or logs are lost it says so, as far as that is possible.
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
	if failed := r.err.close(ctx, abort, patience); r.json { // else it had messages only
		lost = errors.Join(lost, failed)
	}
	return lost
}

// log returns the log of a build, which runs a file. Each line is shown with the name of the build.
func (r *reporter) log(build, file string) io.WriteCloser {
	p := &prefixed{
		share: r.logs.share(), plain: r.plain, watched: r.terminal, prefix: []byte(build + " | "), file: file,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logOf[build] = p
	return p
}

// prefixed shows whole lines. Close may be called while a Write waits for the reader.
type prefixed struct {
	share   share
	plain   bool
	watched bool // last is called
	prefix  []byte
	file    string // the build's

	mu     sync.Mutex // guards the following
	part   []byte     // a line that has not ended
	newest []byte     // the beginning of the last line that has
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

// lines returns the lines that end in text, as they are shown, and keeps the last if it has no end. It returns the rest
// of a text of which more lines would not fit in the build's share of the queue.
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

// last returns the last line.
func (p *prefixed) last() lastLine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.newest) == 0 {
		return lastLine{}
	}
	return lastLine{string(p.prefix) + termtext.Line(string(p.newest)), p.at}
}

// Close shows a last line that has no end. It does not wait.
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

// jsonBuild is one build's result.
type jsonBuild struct {
	Build    string           `json:"build"`
	File     string           `json:"file"`
	Instance string           `json:"instance"`
	Status   string           `json:"status"`
	Reason   string           `json:"reason"`
	ExitCode *int             `json:"exit_code,omitempty"` // nil if no script ended
	Error    string           `json:"error,omitempty"`
	Cleanup  string           `json:"cleanup_error,omitempty"`
	Left     []string         `json:"left,omitempty"` // what may be left on the instance
	Route    connector.Choice `json:"route"`
	program.Isolation
	Connect     float64 `json:"connect_s"`
	FirstOutput float64 `json:"first_output_s"`
	Duration    float64 `json:"duration_s"`
	program.Usage
}

func jsonBuildOf(r batch.Report, file string) jsonBuild {
	b := jsonBuild{
		Build: r.Build, File: file, Instance: r.Instance, Status: "success",
		Route: r.Route, Isolation: r.Isolation, Usage: r.Usage,
		Connect: r.Connect.Seconds(), FirstOutput: r.FirstOutput.Seconds(), Duration: r.Duration.Seconds(),
	}
	if r.Err == nil {
		b.ExitCode = new(0)
	} else {
		b.Status, b.Reason, b.Error = "failed", string(r.Err.Reason), termtext.Text(r.Err.Err.Error())
	}
	if r.Err != nil && r.Err.Reason == instance.ScriptFailure && r.Err.ExitCode != 0 {
		b.ExitCode = &r.Err.ExitCode
	}
	if r.Cleanup != nil {
		b.Cleanup = termtext.Text(r.Cleanup.Error())
	}
	for _, what := range r.Left {
		b.Left = append(b.Left, termtext.Text(what))
	}
	return b
}

// jsonSummary is the last object of a run.
type jsonSummary struct {
	Builds      int                        `json:"builds"`
	Failed      int                        `json:"failed"`
	Left        int                        `json:"left"` // builds of which something may be left on their instance
	Connections map[string]int             `json:"connections"`
	JumpHosts   map[string]int             `json:"jump_hosts"` // connections to jump hosts that are not instances
	Sessions    map[string]int             `json:"sessions_at_once"`
	Programs    map[string]program.Program `json:"step_runners"` // of the instances with one
	Duration    float64                    `json:"duration_s"`
}

// summary shows the totals of the run.
func (r *reporter) summary(reports []batch.Report, stat instance.Stat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.json {
		sum := jsonSummary{
			len(reports), r.failed, r.left,
			map[string]int{},
			map[string]int{},
			map[string]int{},
			map[string]program.Program{},
			time.Since(r.began).Seconds(),
		}
		for _, in := range stat.Instances {
			sum.Connections[in.ID], sum.Sessions[in.ID] = in.Connections, in.Conn.Sessions.Peak
			if in.Program.Kind != "" {
				sum.Programs[in.ID] = in.Program
			}
		}
		for _, j := range stat.JumpHosts {
			sum.JumpHosts[j.ID] = j.Connections
		}
		_ = writeJSON(r.out, map[string]jsonSummary{"summary": sum})
		return
	}
	fmt.Fprintf(r.err, "\n%d builds, %d failed, in %v\n",
		len(reports), r.failed, time.Since(r.began).Round(100*time.Millisecond))
	if r.total > 1 {
		for _, line := range r.failures.summary() {
			r.showLocked("%s", line)
		}
	}
	if r.left > 0 {
		fmt.Fprintf(r.err, "builds that may have left something on their VM: %d\n", r.left)
	}
	for _, in := range stat.Instances {
		if in.Addr == "" { // a cluster
			r.showLocked("%s: a pod for each build", in.ID)
			continue
		}
		sessions := in.Conn.Sessions
		allowed := ""
		if sessions.Limit > 0 {
			allowed = fmt.Sprintf(" of %d the server allows", sessions.Limit)
		}
		r.showLocked("%s: connections: %d, sessions at once: %d%s", in.ID, in.Connections, sessions.Peak, allowed)
		if in.Program.Kind != "" {
			r.showLocked("  step runner: %s", in.Program)
		}
		for _, line := range routesOn(in.ID, reports) {
			r.showLocked("  %s", line)
		}
	}
	ids, builds := gone(stat, reports)
	for _, id := range ids {
		r.showLocked("%s: left during the run, builds: %d", id, builds[id])
		for _, line := range routesOn(id, reports) {
			r.showLocked("  %s", line)
		}
	}
	if line := isolationOn(reports); line != "" {
		r.showLocked("isolation: %s", line)
	}
	used := program.Usage{}
	for _, report := range reports {
		used = used.Plus(report.Usage)
	}
	if used != (program.Usage{}) {
		fmt.Fprintf(r.err, "used: %v\n", used)
	}
	for _, j := range stat.JumpHosts {
		r.showLocked("jump host %s: connections: %d", j.ID, j.Connections)
	}
	if first := firstOutputs(reports); len(first) > 0 {
		fmt.Fprintf(r.err, "time to first output: p50 %v, p95 %v\n", quantile(first, 0.50), quantile(first, 0.95))
	}
}

// gone returns the instances that have left, in the order of their first builds, and how many builds each had.
func gone(stat instance.Stat, reports []batch.Report) (ids []string, builds map[string]int) {
	here := map[string]bool{"": true} // the instance of a build that never had a slot
	for _, in := range stat.Instances {
		here[in.ID] = true
	}
	builds = map[string]int{}
	for _, r := range reports {
		if here[r.Instance] {
			continue
		}
		if builds[r.Instance]++; builds[r.Instance] == 1 {
			ids = append(ids, r.Instance)
		}
	}
	return ids, builds
}

// isolationOn returns the isolation of the builds on each VM, in the order of its first use: "processes on 9 VMs; off
// on vm-3: REASON".
func isolationOn(reports []batch.Report) string {
	vms := map[program.Isolation][]string{}
	var order []program.Isolation
	for _, r := range reports {
		switch on := vms[r.Isolation]; {
		case r.Isolation.Level == "" || slices.Contains(on, r.Instance):
		case len(on) == 0:
			order = append(order, r.Isolation)
			fallthrough
		default:
			vms[r.Isolation] = append(on, r.Instance)
		}
	}
	parts := make([]string, len(order))
	for i, level := range order {
		where := vms[level][0]
		if n := len(vms[level]); n > 1 {
			where = fmt.Sprintf("%d VMs", n)
		}
		parts[i] = level.Level + " on " + where
		if level.Reason != "" {
			parts[i] += ": " + level.Reason
		}
	}
	return strings.Join(parts, "; ")
}

// routesOn returns a line for each route on an instance, with the number of builds and the reason, in the order of
// their first use.
func routesOn(id string, reports []batch.Report) []string {
	type way struct {
		verb   string
		route  connector.Route
		reason string
	}
	builds := map[way]int{}
	var order []way
	for _, of := range []func(connector.Choice) way{
		func(c connector.Choice) way { return way{"started by", c.Start, c.StartReason} },
		func(c connector.Choice) way { return way{"bridged by", c.Bridge, c.BridgeReason} },
	} {
		for _, r := range reports {
			w := of(r.Route)
			if r.Instance != id || w.route == "" {
				continue
			}
			if builds[w]++; builds[w] == 1 {
				order = append(order, w)
			}
		}
	}
	lines := make([]string, len(order))
	for i, w := range order {
		lines[i] = fmt.Sprintf("%s %s: %d (%s)", w.verb, w.route, builds[w], w.reason)
	}
	return lines
}

// firstOutputs returns the sorted times to first output of the builds.
func firstOutputs(reports []batch.Report) []time.Duration {
	var all []time.Duration
	for _, r := range reports {
		if r.FirstOutput > 0 {
			all = append(all, r.FirstOutput)
		}
	}
	slices.Sort(all)
	return all
}

// quantile returns the q-quantile of sorted, by the nearest rank.
func quantile(sorted []time.Duration, q float64) time.Duration {
	rank := int(q*float64(len(sorted)) + 0.5)
	return sorted[min(max(rank-1, 0), len(sorted)-1)].Round(100 * time.Microsecond)
}

// writeJSON writes v as a line.
func writeJSON(w io.Writer, v any) error {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
