package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// noise is how far beyond a goal a figure may lie and still count as met by what these machines can tell.
const noise = 0.1

// goal is a figure the project has set itself. It is a ratio within one run, or a count.
type goal struct {
	says   string // what it means
	bench  string
	metric string
	over   string  // a metric of the same benchmark to divide by; may be empty
	most   float64 // the bound, if not zero
	least  float64 // or this one
}

// goals are all of them, in the order of a build's life.
var goals = []goal{
	{says: "start by relay, over fork and exec", bench: "Start/rtt=0s", metric: "relay-x/fork", most: 1.5},
	{says: "start by session, over relay", bench: "Start/rtt=0s", metric: "session-x/relay", least: 2},
	{says: "start by OpenSSH ControlMaster, over relay", bench: "Start/rtt=0s", metric: "control-master-x/relay", least: 5},
	{says: "start by a fresh dial, over relay", bench: "Start/rtt=0s", metric: "fresh-dial-x/relay", least: 30},
	{says: "start by relay over a distance, in round trips", bench: "Start/rtt=50ms", metric: "relay-trips", most: 1.1},
	{says: "bridge by relay over a distance and a ping by it, in round trips", bench: "BridgeOpen/rtt=50ms", metric: "relay-trips", most: 2.2},
	{says: "one relay stream over a distance, over one SSH channel", bench: "BridgeFar", metric: "relay-x/raw", least: 0.8},
	{says: "build start by relay, over fresh dials", bench: "BuildStart/rtt=0s", metric: "relay-x/fresh-dial", most: 1.0 / 25},
	{says: "build start by streamlocal, over fresh dials", bench: "BuildStart/rtt=0s", metric: "streamlocal-x/fresh-dial", most: 1.0 / 15},
	{says: "build start by session, over fresh dials", bench: "BuildStart/rtt=0s", metric: "session-x/fresh-dial", most: 1.0 / 15},
	{says: "build start as it comes, over fresh dials", bench: "BuildStart/rtt=0s", metric: "auto-x/fresh-dial", most: 1.0 / 15},
	{says: "build start as it comes, over OpenSSH ControlMaster", bench: "BuildStart/rtt=0s", metric: "auto-p50-µs", over: "control-master-p50-µs", most: 1.0 / 3},
	{says: "build start as it comes, over the same without SSH", bench: "BuildStart/rtt=0s", metric: "auto-p50-µs", over: "local-p50-µs", most: 2.5},
	{says: "build start by relay over a distance, in round trips", bench: "BuildStart/rtt=100ms", metric: "relay-trips", most: 2.2},
	{says: "one bridge down by streamlocal, over an SSH channel", bench: "Bridge/down", metric: "streamlocal-x/raw", least: 0.95},
	{says: "one bridge up by streamlocal, over an SSH channel", bench: "Bridge/up", metric: "streamlocal-x/raw", least: 0.95},
	{says: "one bridge down by relay, over an SSH channel", bench: "Bridge/down", metric: "relay-x/raw", least: 0.65},
	{says: "one bridge up by relay, over an SSH channel", bench: "Bridge/up", metric: "relay-x/raw", least: 0.65},
	{says: "one bridge down by session, over an SSH channel", bench: "Bridge/down", metric: "session-x/raw", least: 0.6},
	{says: "one bridge up by session, over an SSH channel", bench: "Bridge/up", metric: "session-x/raw", least: 0.6},
	{says: "64 bridges down by streamlocal, over one", bench: "Bridges/down", metric: "streamlocal-x/alone", least: 0.8},
	{says: "64 bridges up by streamlocal, over one", bench: "Bridges/up", metric: "streamlocal-x/alone", least: 0.8},
	{says: "64 bridges down by relay, over one", bench: "Bridges/down", metric: "relay-x/alone", least: 0.8},
	{says: "64 bridges up by relay, over one", bench: "Bridges/up", metric: "relay-x/alone", least: 0.8},
	{says: "64 bridges down by session, over one", bench: "Bridges/down", metric: "session-x/alone", least: 0.8},
	{says: "64 bridges up by session, over one", bench: "Bridges/up", metric: "session-x/alone", least: 0.8},
	{says: "ping beside 1,000 idle builds, by relay", bench: "IdleBuilds/builds=1000", metric: "relay-ping-x/alone", most: 1.5},
	{says: "download beside 1,000 idle builds, by relay", bench: "IdleBuilds/builds=1000", metric: "relay-rate-x/alone", least: 1.0 / 1.3},
	{says: "ping's p99 beside a download, over one on another connection, streamlocal", bench: "Ping", metric: "streamlocal-same-p99-µs", over: "streamlocal-separate-p99-µs", most: 2},
	{says: "ping's p99 beside a download, over one on another connection, relay", bench: "Ping", metric: "relay-same-p99-µs", over: "relay-separate-p99-µs", most: 2},
	{says: "processor time of 200 stalled streams, streamlocal", bench: "Stalled/by=streamlocal/streams=200", metric: "idle-vm-s/s", most: 0.01},
	{says: "processor time of 200 stalled streams, relay", bench: "Stalled/by=relay/streams=200", metric: "idle-vm-s/s", most: 0.01},
	{says: "processor time of 50 stalled streams, session", bench: "Stalled/by=session/streams=50", metric: "idle-vm-s/s", most: 0.01},
	{says: "Acquire and Release of a connection that is there, ns", bench: "Pool/callers=1/keys=1", metric: "ns/op", most: 500},
	{says: "allocations of that: the lease", bench: "Pool/callers=1/keys=1", metric: "allocs/op", most: 1},
	{says: "goroutines of the manager for a whole build", bench: "Density/builds=200", metric: "goroutines/build", most: 8},
	{says: "heap of the manager for a whole build, KiB", bench: "Density/builds=200", metric: "heap-KiB/build", most: 64},
	{says: "heap of the manager for each of 1,000 processes, KiB", bench: "Density/processes=1000", metric: "heap-KiB/build", most: 64},
	{says: "sessions that 1,000 processes take", bench: "Density/processes=1000", metric: "sessions", most: 1},
	{says: "connections that 200 builds take", bench: "Density/builds=200", metric: "conns", most: 1},
}

// verdict is how a goal came out.
type verdict struct {
	goal
	measured float64
	known    bool
}

func (g goal) judge(r *results) verdict {
	v := verdict{goal: g}
	v.measured, v.known = r.value(g.bench, g.metric)
	if v.known && g.over != "" {
		var over float64
		over, v.known = r.value(g.bench, g.over)
		v.measured /= over
	}
	return v
}

// word returns "met", "met within noise", "missed" or "not measured".
func (v verdict) word() string {
	beyond := 0.0
	switch {
	case !v.known:
		return "not measured"
	case v.least != 0:
		beyond = v.least/v.measured - 1
	default:
		beyond = v.measured/v.most - 1
	}
	switch {
	case beyond <= 0:
		return "met"
	case beyond <= noise:
		return "met within noise"
	default:
		return "missed"
	}
}

// bound returns the goal as text.
func (v verdict) bound() string {
	if v.least != 0 {
		return "at least " + figure(v.least)
	}
	return "at most " + figure(v.most)
}

func (v verdict) value() string {
	if !v.known {
		return "-"
	}
	return figure(v.measured)
}

// figure writes a number in three digits; a small ratio as one of 1.
func figure(v float64) string {
	switch {
	case v != 0 && math.Abs(v) < 0.1:
		return fmt.Sprintf("1/%.3g", 1/v)
	case math.Abs(v) >= 1000:
		return fmt.Sprintf("%.0f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

// check prints how all goals came out. The error says how many were missed or not measured.
func check(w io.Writer, r *results) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "goal\tbound\tmeasured\tverdict")
	missed := 0
	for _, g := range goals {
		v := g.judge(r)
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", v.says, v.bound(), v.value(), v.word())
		if word := v.word(); word == "missed" || word == "not measured" {
			missed++
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, what := range r.missing {
		fmt.Fprintln(w, "missing:", what)
	}
	for _, what := range r.noisy() {
		fmt.Fprintln(w, "noisy:", what)
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d goals are missed or were not measured", missed, len(goals))
	}
	return nil
}

// noisy names the benchmarks whose figures the machine's other work has spread too far.
func (r *results) noisy() []string {
	const much = 0.5
	var all []string
	for _, name := range r.names {
		if spread, ok := r.value(name, "spread"); ok && spread > much {
			all = append(all, fmt.Sprintf("%s: half of its figures spread over %.0f %% of the median", name, spread*100))
		}
	}
	return all
}
