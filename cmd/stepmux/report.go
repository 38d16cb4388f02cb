package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
)

// maxLine is the longest log line, in bytes. A longer line is shown in parts.
const maxLine = 64 << 10

// redrawEvery is the least time between two progress lines.
const redrawEvery = 100 * time.Millisecond

// reporter shows a run: logs and results on their streams, progress on a terminal. Its methods are safe for concurrent
// use.
type reporter struct {
	json     bool
	terminal bool

	mu       sync.Mutex // guards the following and both streams
	out      io.Writer  // results, and logs in text form
	err      io.Writer  // progress, summary, and logs beside JSON
	total    int
	running  map[string]bool // builds
	done     int
	failed   int
	drawn    bool // the progress line stands on the terminal
	lastDraw time.Time
}

func newReporter(format string, out, err io.Writer) (*reporter, error) {
	return &reporter{
		json: format == "json", terminal: isTerminal(err), out: out, err: err, running: map[string]bool{},
	}, checkOutput(format)
}

// begin sets the number of builds.
func (r *reporter) begin(total int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total = total
	r.drawLocked(true)
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
	delete(r.running, report.Build)
	r.done++
	r.clearLocked()
	if report.Err != nil {
		r.failed++
		fmt.Fprintf(r.err, "%s: %v\n", report.Build, report.Err)
	}
	if report.Cleanup != nil {
		fmt.Fprintf(r.err, "%s: clean-up on %s: %v\n", report.Build, report.Instance, report.Cleanup)
	}
	if r.json {
		writeJSON(r.out, jsonBuildOf(report))
	}
	r.drawLocked(r.done == r.total)
}

// drawLocked draws the progress line.
func (r *reporter) drawLocked(now bool) {
	if !r.terminal || !now && time.Since(r.lastDraw) < redrawEvery {
		return
	}
	r.clearLocked()
	fmt.Fprintf(r.err, "%d of %d builds done, %d running, %d failed", r.done, r.total, len(r.running), r.failed)
	r.drawn, r.lastDraw = true, time.Now()
}

// clearLocked removes the progress line.
func (r *reporter) clearLocked() {
	if r.drawn {
		fmt.Fprint(r.err, "\r\x1b[K")
		r.drawn = false
	}
}

// talk returns a writer for messages that clears the progress line first.
func (r *reporter) talk() io.Writer { return talkWriter{r} }

// say shows a line of text.
func (r *reporter) say(text string) { fmt.Fprintln(r.talk(), text) }

type talkWriter struct{ r *reporter }

func (t talkWriter) Write(p []byte) (int, error) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.r.clearLocked()
	return t.r.err.Write(p)
}

// log returns the log of a build. Each line is shown with the name of the build.
func (r *reporter) log(build string) io.WriteCloser {
	return &prefixed{r: r, prefix: []byte(build + " | ")}
}

// prefixed shows whole lines. One build writes to it at a time.
type prefixed struct {
	r      *reporter
	prefix []byte
	part   []byte // a line that has not ended
}

func (p *prefixed) Write(text []byte) (int, error) {
	n := len(text)
	var lines []byte
	for len(text) > 0 {
		line, rest, ended := bytes.Cut(text, []byte{'\n'})
		text = rest
		p.part = append(p.part, line...)
		if ended || len(p.part) >= maxLine {
			lines = append(append(append(lines, p.prefix...), p.part...), '\n')
			p.part = p.part[:0]
		}
	}
	return n, p.show(lines)
}

// Close shows a last line that has no end.
func (p *prefixed) Close() error {
	if len(p.part) == 0 {
		return nil
	}
	line := append(append(slices.Clone(p.prefix), p.part...), '\n')
	p.part = nil
	return p.show(line)
}

func (p *prefixed) show(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	r := p.r
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clearLocked()
	to := r.out
	if r.json {
		to = r.err
	}
	_, err := to.Write(lines)
	r.drawLocked(false)
	return err
}

// jsonBuild is one build's result.
type jsonBuild struct {
	Build       string    `json:"build"`
	Instance    string    `json:"instance"`
	Status      string    `json:"status"`
	Reason      string    `json:"reason"`
	ExitCode    int       `json:"exit_code"`
	Error       string    `json:"error,omitempty"`
	Cleanup     string    `json:"cleanup_error,omitempty"`
	Route       jsonRoute `json:"route"`
	Connect     float64   `json:"connect_s"`
	FirstOutput float64   `json:"first_output_s"`
	Duration    float64   `json:"duration_s"`
}

type jsonRoute struct {
	Start        connector.Route `json:"start"`
	StartReason  string          `json:"start_reason"`
	Bridge       connector.Route `json:"bridge"`
	BridgeReason string          `json:"bridge_reason"`
}

func jsonBuildOf(r batch.Report) jsonBuild {
	b := jsonBuild{
		Build:       r.Build,
		Instance:    r.Instance,
		Status:      "success",
		Route:       jsonRoute(r.Route),
		Connect:     r.Connect.Seconds(),
		FirstOutput: r.FirstOutput.Seconds(),
		Duration:    r.Duration.Seconds(),
	}
	if r.Err != nil {
		b.Status, b.Reason, b.ExitCode, b.Error = "failed", string(r.Err.Reason), r.Err.ExitCode, r.Err.Err.Error()
	}
	if r.Cleanup != nil {
		b.Cleanup = r.Cleanup.Error()
	}
	return b
}

// jsonSummary is the last object of a run.
type jsonSummary struct {
	Builds      int                    `json:"builds"`
	Failed      int                    `json:"failed"`
	Connections map[string]int         `json:"connections"`
	JumpHosts   map[string]int         `json:"jump_hosts"` // connections to jump hosts that are not instances
	Sessions    map[string]int         `json:"sessions_at_once"`
	Programs    map[string]jsonProgram `json:"step_runners"` // of the instances with one
}

type jsonProgram struct {
	Kind     program.Kind `json:"kind"`
	Version  string       `json:"version,omitempty"`
	Platform string       `json:"platform,omitempty"`
	Command  []string     `json:"command"`
	Uploaded bool         `json:"uploaded"`
}

// summary shows the totals of the run.
func (r *reporter) summary(reports []batch.Report, stat instance.Stat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clearLocked()
	if r.json {
		sum := jsonSummary{
			len(reports), r.failed, map[string]int{}, map[string]int{}, map[string]int{}, map[string]jsonProgram{},
		}
		for _, in := range stat.Instances {
			sum.Connections[in.ID], sum.Sessions[in.ID] = in.Connections, in.Conn.Sessions.Peak
			if in.Program.Kind != "" {
				sum.Programs[in.ID] = jsonProgram(in.Program)
			}
		}
		for _, j := range stat.JumpHosts {
			sum.JumpHosts[j.ID] = j.Connections
		}
		writeJSON(r.out, map[string]jsonSummary{"summary": sum})
		return
	}
	fmt.Fprintf(r.err, "\n%d builds, %d failed\n", len(reports), r.failed)
	for _, in := range stat.Instances {
		sessions := in.Conn.Sessions
		fmt.Fprintf(r.err, "%s: connections: %d, sessions at once: %d", in.ID, in.Connections, sessions.Peak)
		if sessions.Limit > 0 {
			fmt.Fprintf(r.err, " of %d the server allows", sessions.Limit)
		}
		fmt.Fprintln(r.err)
		if in.Program.Kind != "" {
			fmt.Fprintf(r.err, "  step runner: %s\n", in.Program)
		}
		for _, line := range routesOn(in.ID, reports) {
			fmt.Fprintf(r.err, "  %s\n", line)
		}
	}
	for _, j := range stat.JumpHosts {
		fmt.Fprintf(r.err, "jump host %s: connections: %d\n", j.ID, j.Connections)
	}
	if first := firstOutputs(reports); len(first) > 0 {
		fmt.Fprintf(r.err, "time to first output: p50 %v, p95 %v\n", quantile(first, 0.50), quantile(first, 0.95))
	}
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
	for _, r := range reports {
		for _, w := range []way{
			{"started by", r.Route.Start, r.Route.StartReason},
			{"bridged by", r.Route.Bridge, r.Route.BridgeReason},
		} {
			if r.Instance != id || w.route == "" {
				continue
			}
			if builds[w] == 0 {
				order = append(order, w)
			}
			builds[w]++
		}
	}
	slices.SortStableFunc(order, func(a, b way) int { return -strings.Compare(a.verb, b.verb) })
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

func writeJSON(w io.Writer, v any) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("BUG: encode %T: %v", v, err)) // all callers pass our own types
	}
	_, _ = w.Write(append(line, '\n')) // a reader that went away does not want the rest
}
