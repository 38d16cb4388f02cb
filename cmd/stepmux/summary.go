package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/likeness"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/termtext"
)

// jsonBuild is the result of one build.
type jsonBuild struct {
	Build    string           `json:"build"`
	File     string           `json:"file"`
	Instance string           `json:"instance"`
	Status   string           `json:"status"`
	Reason   string           `json:"reason"`
	ExitCode *int             `json:"exit_code,omitempty"` // nil if no script ended
	Error    string           `json:"error,omitempty"`
	Cleanup  string           `json:"cleanup_error,omitempty"`
	Left     []string         `json:"left,omitempty"`   // see batch.Report
	Forced   string           `json:"forced,omitempty"` // see batch.Report
	Route    connector.Choice `json:"route"`
	program.Isolation
	Connect     float64 `json:"connect_s"`
	FirstOutput float64 `json:"first_output_s"`
	Duration    float64 `json:"duration_s"`
	program.Usage
	Warnings []standalone.Problem `json:"warnings,omitempty"` // about its scripts
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
	b.Forced = termtext.Text(r.Forced)
	return b
}

// jsonSummary is the last object of a run.
type jsonSummary struct {
	Builds      int                        `json:"builds"`
	Failed      int                        `json:"failed"`
	NotStarted  int                        `json:"not_started,omitempty"` // because of --max-failures
	Left        int                        `json:"left"`                  // that may have left something on their instance
	Connections map[string]int             `json:"connections"`
	JumpHosts   map[string]int             `json:"jump_hosts"` // connections to jump hosts, without instances
	Sessions    map[string]int             `json:"sessions_at_once"`
	Programs    map[string]program.Program `json:"step_runners"` // of the instances with one
	Duration    float64                    `json:"duration_s"`
}

// summary shows the totals of the run.
func (r *reporter) summary(reports []batch.Report, stat instance.Stat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.json {
		_ = writeJSON(r.out, map[string]jsonSummary{"summary": r.jsonSummaryLocked(len(reports), stat)})
		return
	}
	rest := ""
	if len(r.rest) > 0 {
		rest = fmt.Sprintf(", %d not started", len(r.rest))
	}
	fmt.Fprintf(r.err, "\n%s, %d failed%s, in %v\n",
		plural.Count(len(reports), "build"), r.failed, rest, time.Since(r.began).Round(100*time.Millisecond))
	if r.total > 1 {
		for _, line := range r.failures.summary("failed") {
			r.showLocked("%s", line)
		}
	}
	if len(r.rest) > 0 {
		r.showLocked("not started, because too many had failed (--max-failures): %s", names(r.rest))
	}
	for _, line := range r.remains.several().summary("left") {
		r.showLocked("%s", line)
	}
	if r.left > 0 {
		fmt.Fprintf(r.err, "builds that may have left something on their VM: %d\n", r.left)
	}
	forced := map[string]int{}
	for _, report := range reports {
		forced[report.Forced]++
	}
	delete(forced, "")
	for _, why := range slices.Sorted(maps.Keys(forced)) {
		r.showLocked("step runners that steps end had to end: %d (%s)", forced[why], why)
	}
	for _, in := range stat.Instances {
		r.showInstanceLocked(in, reports)
	}
	ids, builds := gone(stat, reports)
	for _, id := range ids {
		r.showLocked("%s: left during the run, builds: %d", id, builds[id])
		r.showRoutesLocked(id, reports)
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

// jsonSummaryLocked returns the totals of a run with this number of builds. r.mu is held.
func (r *reporter) jsonSummaryLocked(builds int, stat instance.Stat) jsonSummary {
	sum := jsonSummary{
		Builds: builds, Failed: r.failed, NotStarted: len(r.rest), Left: r.left,
		Connections: map[string]int{}, JumpHosts: map[string]int{}, Sessions: map[string]int{},
		Programs: map[string]program.Program{},
		Duration: time.Since(r.began).Seconds(),
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
	return sum
}

// showInstanceLocked shows how the builds used an instance. r.mu is held.
func (r *reporter) showInstanceLocked(in instance.VMStat, reports []batch.Report) {
	if in.Addr == "" { // a cluster
		r.showLocked("%s: a pod for each build", in.ID)
		return
	}
	sessions, allowed := in.Conn.Sessions, ""
	if sessions.Limit > 0 {
		allowed = fmt.Sprintf(" of %d the server allows", sessions.Limit)
	}
	r.showLocked("%s: connections: %d, sessions at once: %d%s", in.ID, in.Connections, sessions.Peak, allowed)
	if in.Program.Kind != "" {
		r.showLocked("  step runner: %s", in.Program)
	}
	r.showRoutesLocked(in.ID, reports)
}

// showRoutesLocked shows the routes of an instance's builds. r.mu is held.
func (r *reporter) showRoutesLocked(id string, reports []batch.Report) {
	for _, line := range routesOn(id, reports) {
		r.showLocked("  %s", line)
	}
}

// gone returns the instances that have left the group, in the order of their first builds, and the number of builds
// of each.
func gone(stat instance.Stat, reports []batch.Report) (ids []string, builds map[string]int) {
	here := map[string]bool{"": true} // "": a build that never had a slot
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

// isolationOn returns the isolation of the builds on each VM, in the order of first use, such as "processes on 9 VMs;
// off on vm-3: REASON".
func isolationOn(reports []batch.Report) string {
	vms := map[program.Isolation][]string{} // the reasons are those that likeness has made
	var first []program.Isolation
	var order []program.Isolation
	for _, r := range reports {
		like := r.Isolation
		like.Reason = likeness.Of(like.Reason, r.Build, r.Instance)
		switch on := vms[like]; {
		case r.Isolation.Level == "" || slices.Contains(on, r.Instance):
		case len(on) == 0:
			first, order = append(first, r.Isolation), append(order, like)
			fallthrough
		default:
			vms[like] = append(on, r.Instance)
		}
	}
	parts := make([]string, len(order))
	for i, like := range order {
		where := vms[like][0]
		if n := len(vms[like]); n > 1 {
			where = fmt.Sprintf("%d VMs", n)
		}
		parts[i] = string(like.Level) + " on " + where
		if first[i].Reason != "" {
			parts[i] += ": " + first[i].Reason
		}
	}
	return strings.Join(parts, "; ")
}

// routesOn returns a line for each route on an instance, with the number of builds and the reason, in the order of
// first use.
func routesOn(id string, reports []batch.Report) []string {
	type way struct {
		verb   string
		route  connector.Route
		reason string
	}
	builds := map[way]int{} // the reasons are those that likeness has made
	var first, order []way
	for _, of := range []func(connector.Choice) way{
		func(c connector.Choice) way { return way{"started by", c.Start, c.StartReason} },
		func(c connector.Choice) way { return way{"bridged by", c.Bridge, c.BridgeReason} },
	} {
		for _, r := range reports {
			w := of(r.Route)
			if r.Instance != id || w.route == "" {
				continue
			}
			like := w
			like.reason = likeness.Of(w.reason, r.Build, r.Instance)
			if builds[like]++; builds[like] == 1 {
				first, order = append(first, w), append(order, like)
			}
		}
	}
	lines := make([]string, len(order))
	for i, w := range first {
		lines[i] = fmt.Sprintf("%s %s: %d (%s)", w.verb, w.route, builds[order[i]], w.reason)
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

// writeJSON writes v as a line. It escapes all characters that are not printable, also those above ASCII, which
// encoding/json does not.
func writeJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		var line []byte
		for _, c := range string(text) {
			if unicode.IsPrint(c) {
				line = utf8.AppendRune(line, c)
				continue
			}
			for _, unit := range utf16.Encode([]rune{c}) {
				line = fmt.Appendf(line, `\u%04x`, unit)
			}
		}
		_, err = w.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
