package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// A figure that misses its goal by no more than a margin counts as met within noise. The margin is the figure's own
// noise, but at least leastMargin and at most mostMargin.
const leastMargin, mostMargin = 0.1, 0.25

// goal is a figure the project has set itself. It is a ratio within one run, or a count.
type goal struct {
	says   string // in words
	bench  string
	metric string
	over   string  // a metric of the same benchmark to divide by; may be empty
	most   float64 // the bound, if not zero
	least  float64 // or this one
	// given says that the peer is not there in each run: the goal counts only if it was measured.
	given bool
}

// Benchmarks that several goals, pictures and headlines are about.
const (
	firstByte   = "SpawnLatency/first-byte/CapacityPerInstance=1"
	warm        = "SpawnLatency/first-answer/vm=warm/CapacityPerInstance=1"
	cold        = "SpawnLatency/first-answer/vm=cold"
	oneDown     = "ProxyThroughput/down/CapacityPerInstance=1"
	oneUp       = "ProxyThroughput/up/CapacityPerInstance=1"
	manyDown    = "ProxyThroughput/alone/down"
	manyUp      = "ProxyThroughput/alone/up"
	followIO    = "ProxyThroughput/FollowIO"
	flooded     = "Neighbour/flood/CapacityPerInstance=2"
	idle        = "Neighbour/idle/CapacityPerInstance=1000"
	crowded     = "Density/CapacityPerInstance=512"
	relayed     = "Density/CapacityPerInstance=128"
	processes   = "Density/processes=1000"
	growth      = "Density/growth"
	uncontended = "Pool/goroutines=1/keys=1"
	executor    = "CustomExecutor"
	spending    = "Price/processor-time"
	planStages  = "LocalPipeline/plan/stages=2"
	planNeeds   = "LocalPipeline/plan/needs=50"
)

// goals are all of them, in the order of a build's life.
var goals = []goal{
	{says: "process by relay, first byte, over fork and exec", bench: firstByte, metric: "relay-x/fork", most: 1.5},
	{says: "process by session, over relay", bench: firstByte, metric: "session-x/relay", least: 2},
	{says: "process by OpenSSH ControlMaster, over relay", bench: firstByte, metric: "control-master-x/relay", least: 5},
	{says: "process by a fresh dial, over relay", bench: firstByte, metric: "fresh-dial-x/relay", least: 30},
	{
		says: "process by relay over a distance, in round trips", bench: "Distance/first-byte/rtt=50ms",
		metric: "relay-trips", most: 1.1,
	},
	{
		says: "bridge by relay over a distance and a ping by it, in round trips", bench: "Distance/bridge/rtt=50ms",
		metric: "relay-trips", most: 2.2,
	},
	{
		says: "one relay stream over a distance, over one SSH channel", bench: "Distance/throughput/rtt=50ms",
		metric: "relay-x/raw", least: 0.8,
	},

	{
		says: "build on a known VM, first answer, by auto, over fresh dials", bench: warm, metric: "auto-x/fresh-dial",
		most: 1.0 / 15,
	},
	{says: "first build on a VM, over a fresh dial", bench: cold, metric: "auto-x/fresh-dial", most: 0.5},
	{says: "build by relay, over fresh dials", bench: warm, metric: "relay-x/fresh-dial", most: 1.0 / 25},
	{says: "build by streamlocal, over fresh dials", bench: warm, metric: "streamlocal-x/fresh-dial", most: 1.0 / 15},
	{says: "build by session, over fresh dials", bench: warm, metric: "session-x/fresh-dial", most: 1.0 / 15},
	{
		says: "build by auto, over OpenSSH ControlMaster", bench: warm, metric: "auto-p50-µs",
		over: "control-master-p50-µs", most: 1.0 / 3,
	},
	{says: "build by auto, over the same without SSH", bench: warm, metric: "auto-x/local", most: 2.5},
	{
		says: "step runner from its exec to its ready marker, over an empty Go program", bench: "SpawnLatency/serve",
		metric: "serve-x/empty", most: 2.5,
	},
	{
		says: "build by relay over a distance, in round trips", bench: "Distance/first-answer/rtt=100ms",
		metric: "relay-trips", most: 2.2,
	},

	{
		says: "one bridge down by streamlocal, over an SSH channel", bench: oneDown, metric: "streamlocal-x/raw",
		least: 0.95,
	},
	{says: "one bridge up by streamlocal, over an SSH channel", bench: oneUp, metric: "streamlocal-x/raw", least: 0.95},
	{says: "one bridge down by relay, over an SSH channel", bench: oneDown, metric: "relay-x/raw", least: 0.8},
	{says: "one bridge up by relay, over an SSH channel", bench: oneUp, metric: "relay-x/raw", least: 0.75},
	{says: "one bridge down by session, over an SSH channel", bench: oneDown, metric: "session-x/raw", least: 0.6},
	{says: "one bridge up by session, over an SSH channel", bench: oneUp, metric: "session-x/raw", least: 0.6},
	{
		says: "the manager's processor time for a GB down, over an SSH channel", bench: oneDown,
		metric: "streamlocal-client-s/GB", over: "raw-client-s/GB", most: 0.85,
	},
	{
		says: "the manager's processor time for a GB up, over an SSH channel", bench: oneUp,
		metric: "streamlocal-client-s/GB", over: "raw-client-s/GB", most: 0.9,
	},
	{says: "64 bridges down by streamlocal, over one", bench: manyDown, metric: "streamlocal-x/alone", least: 0.8},
	{says: "64 bridges up by streamlocal, over one", bench: manyUp, metric: "streamlocal-x/alone", least: 0.8},
	{says: "64 bridges down by relay, over one", bench: manyDown, metric: "relay-x/alone", least: 0.8},
	{says: "64 bridges up by relay, over one", bench: manyUp, metric: "relay-x/alone", least: 0.8},
	{says: "64 bridges down by session, over one", bench: manyDown, metric: "session-x/alone", least: 0.8},
	{says: "64 bridges up by session, over one", bench: manyUp, metric: "session-x/alone", least: 0.8},
	{
		says: "following a GiB of log by streamlocal, over gRPC on the socket itself", bench: followIO,
		metric: "streamlocal-x/unix", least: 0.5,
	},
	{
		says: "following a GiB of log by relay, over gRPC on the socket itself", bench: followIO, metric: "relay-x/unix",
		least: 0.5,
	},
	{
		says: "what the manager keeps of its heap after that, over after a quarter of it, streamlocal", bench: followIO,
		metric: "streamlocal-heap-last-x/first-part", most: 1.25,
	},
	{
		says: "what the manager keeps of its heap after that, over after a quarter of it, relay", bench: followIO,
		metric: "relay-heap-last-x/first-part", most: 1.25,
	},

	{
		says: "build in a container, over docker run of an empty command", bench: "Container/start",
		metric: "build-x/docker-run", most: 1.1,
	},
	{
		says: "the same on a VM, over docker run by ssh://", bench: "Container/start-ssh", metric: "build-x/docker-run",
		most: 0.5,
	},
	{
		says: "step runner in a container that is there, over a bare exec", bench: "Container/start-exec",
		metric: "relay-x/exec", most: 1.2,
	},
	{
		says: "128 bridges at once to a container, µs", bench: "Container/bridges=128", metric: "attach-p50-µs",
		most: 100_000,
	},

	{
		says: "jobs of GitLab's custom executor, over a driver that logs in by ssh for each stage", bench: executor,
		metric: "stepmux-x/ssh", most: 1.0 / 3,
	},
	{says: "logins that those jobs take on four VMs", bench: executor, metric: "stepmux-logins", most: 4},
	{
		says: "sources of a job in a new directory, over one shell", bench: "Sources/dir=new", metric: "step-x/shell",
		most: 1.2,
	},
	{says: "those in the directory of an earlier clone", bench: "Sources/dir=again", metric: "step-x/shell", most: 1.2},
	{
		says:  "200 jobs of a pipeline in four stages on four VMs, over as many builds of one of them",
		bench: "Pipeline/stages", metric: "pipeline-x/builds", most: 1.1,
	},
	{
		says:  "bytes of 60 jobs with 1 MiB for three others each, over one transfer from and to each VM that needs it",
		bench: "Pipeline/artifacts", metric: "bytes-x/least", most: 1.3,
	},

	{says: "ping beside 1,000 idle builds, by relay", bench: idle, metric: "relay-ping-x/alone", most: 1.5},
	{says: "download beside 1,000 idle builds, by relay", bench: idle, metric: "relay-rate-x/alone", least: 1.0 / 1.3},
	{
		says: "ping's p99 beside a download, over one on another connection, streamlocal", bench: flooded,
		metric: "streamlocal-same-p99-µs", over: "streamlocal-separate-p99-µs", most: 2,
	},
	{
		says: "ping's p99 beside a download, over one on another connection, relay", bench: flooded,
		metric: "relay-same-p99-µs", over: "relay-separate-p99-µs", most: 1.5,
	},
	{
		says: "processor time of 200 stalled streams, streamlocal", bench: "Neighbour/stalled/by=streamlocal/streams=200",
		metric: "idle-vm-s/s", most: 0.01,
	},
	{
		says: "processor time of 200 stalled streams, relay", bench: "Neighbour/stalled/by=relay/streams=200",
		metric: "idle-vm-s/s", most: 0.01,
	},
	{
		says: "processor time of 50 stalled streams, session", bench: "Neighbour/stalled/by=session/streams=50",
		metric: "idle-vm-s/s", most: 0.01,
	},

	{
		says: "time of each of 512 builds, over that of each of fewer", bench: growth, metric: "auto-time-x/linear",
		most: 1.5,
	},
	{
		says: "heap of the manager for each of 512 builds, over that of each of fewer", bench: growth,
		metric: "auto-heap-x/linear", most: 1.5,
	},
	{
		says: "goroutines of the manager for each of 512 builds, over those of each of fewer", bench: growth,
		metric: "auto-goroutines-x/linear", most: 1.5,
	},
	{
		says: "memory of each of 512 step runners, over that of each of fewer", bench: growth,
		metric: "auto-serve-x/linear", most: 1.5,
	},
	{
		says: "memory of the VM for each of 512 builds, over that of each of fewer", bench: growth,
		metric: "auto-vm-x/linear", most: 1.5,
	},
	{
		says: "goroutines of the manager for a running build", bench: relayed, metric: "running-goroutines/build",
		most: 20,
	},
	{
		says: "goroutines of the manager for a running build by relay", bench: relayed,
		metric: "relay-running-goroutines/build", most: 16,
	},
	{
		says: "goroutines of the manager for a build without a job yet, by relay", bench: relayed,
		metric: "relay-goroutines/build", most: 8,
	},
	{
		says: "goroutines of the manager for a build without a job yet", bench: crowded,
		metric: "auto-goroutines/build", most: 8,
	},
	{
		says: "heap of the manager for a build without a job yet, KiB", bench: crowded,
		metric: "auto-heap-KiB/build", most: 64,
	},
	{says: "connections that 512 builds take", bench: crowded, metric: "auto-conns", most: 1},
	{
		says: "heap of the manager for each of 1,000 processes, KiB", bench: processes, metric: "relay-heap-KiB/build",
		most: 64,
	},
	{says: "sessions that 1,000 processes take", bench: processes, metric: "relay-sessions", most: 1},
	{
		says: "memory of the step runner of a VM's only build (PSS), KiB", bench: "Density/CapacityPerInstance=1",
		metric: "auto-serve-KiB/build", most: 10 << 10,
	},
	{
		says: "memory of an idle step runner alone on a VM (PSS), MiB", bench: "Density/serve-idle",
		metric: "serve-PSS-MiB", most: 6,
	},
	{says: "memory of an idle relay (PSS), MiB", bench: "Density/serve-idle", metric: "relay-PSS-MiB", most: 6},

	{
		says: "processor time of a trivial build, of all processes, over an earlier commit", bench: spending,
		metric: "now-x/base", most: 0.4, given: true,
	},
	{says: "the same, over bash -c true in a loop", bench: spending, metric: "now-x/bash", most: 6},
	{says: "the manager's part of it, over the same", bench: spending, metric: "manager-x/bash", most: 1.5},
	{
		says: "trivial builds a second, 16 at once, over an earlier commit", bench: "Price/throughput",
		metric: "now-x/base", least: 2.5, given: true,
	},
	{
		says: "the same from a manager's queue, over those of a run", bench: "Price/queue", metric: "queue-x/run",
		least: 0.93,
	},
	{
		says: "first byte of a job of a step runner that has run others, over an earlier commit", bench: "Price/job",
		metric: "now-x/base", most: 0.7, given: true,
	},
	{
		says: "memory of an idle VM (PSS): its relay and all that is kept ready, MiB", bench: "Price/idle",
		metric: "now-PSS-MiB", most: 14,
	},

	{
		says:  "200 jobs of true in 4 stages by local, over gitlab-ci-local (cut off after 3 minutes)",
		bench: "LocalPipeline/gitlab/jobs=200", metric: "local-x/gitlab-ci-local", most: 1.0 / 40, given: true,
	},
	{
		says: "50 jobs of true of a workflow by local, over act without containers", bench: "LocalPipeline/github/jobs=50",
		metric: "local-x/act", most: 0.5, given: true,
	},
	{
		says:  "end of a job to the first line of the job that waits for it alone, over the start of a job",
		bench: "LocalPipeline/chain", metric: "handoff-x/start", most: 1.2,
	},
	{says: "plan of two stages of 5,000 jobs, from the file, ms", bench: planStages, metric: "plan-ms", most: 1000},
	{says: "its memory beyond that of one job (RSS), MiB", bench: planStages, metric: "more-MiB", most: 100},
	{says: "plan of 10,000 jobs with 50 needs, from the file, ms", bench: planNeeds, metric: "plan-ms", most: 5000},
	{says: "its memory beyond that of one job (RSS), MiB", bench: planNeeds, metric: "more-MiB", most: 300},

	{
		says:  "upload of an artifact by npm's client in a job, over a stream of the same connection",
		bench: "Actions/artifact", metric: "up-x/stream", least: 0.6, given: true,
	},
	{says: "download of it", bench: "Actions/artifact", metric: "down-x/stream", least: 0.6, given: true},
	{
		says:  "memory of the manager for both, beyond that without services, MiB",
		bench: "Actions/memory/manager", metric: "more-MiB", most: 32, given: true,
	},
	{says: "that of run", bench: "Actions/memory/run", metric: "more-MiB", most: 32, given: true},
	{says: "that of local", bench: "Actions/memory/local", metric: "more-MiB", most: 32, given: true},
	{
		says:  "job that has services and uses none, over one without",
		bench: "Actions/unused", metric: "with-x/without", most: 1.02, given: true,
	},

	{
		says: "logins to 100 VMs at once over a distance, over one", bench: "Pool/fleet=100/rtt=50ms",
		metric: "pool-x/one-dial", most: 10,
	},
	{says: "Acquire and Release of a connection that is there, ns", bench: uncontended, metric: "ns/op", most: 500},
	{says: "allocations of that: the lease", bench: uncontended, metric: "allocs/op", most: 1},
}

// verdict is how a goal came out.
type verdict struct {
	goal
	measured float64
	noise    float64 // in relation to it
	known    bool
}

func (g goal) judge(r *results) verdict {
	v := verdict{goal: g}
	v.measured, v.known = r.value(g.bench, g.metric)
	v.noise, _ = r.value(g.bench, g.metric+noiseSuffix) // 0 where it is not known
	if v.known && g.over != "" {
		var over float64
		over, v.known = r.value(g.bench, g.over)
		noise, _ := r.value(g.bench, g.over+noiseSuffix)
		v.noise = math.Hypot(v.noise, noise)
		v.measured /= over
	}
	return v
}

// word returns "met", "met within noise", "missed" or "not measured".
func (v verdict) word() string {
	beyond := 0.0
	switch {
	case !v.known || math.IsNaN(v.measured) || math.IsInf(v.measured, 0):
		return "not measured"
	case v.least != 0:
		beyond = v.least/v.measured - 1
	default:
		beyond = v.measured/v.most - 1
	}
	switch {
	case beyond <= 0:
		return "met"
	case beyond <= min(max(v.noise, leastMargin), mostMargin):
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
	return figure(v.measured) + plusMinus(v.noise)
}

// plusMinus writes a noise, or nothing below half a percent.
func plusMinus(noise float64) string {
	if noise < 0.005 {
		return ""
	}
	return fmt.Sprintf(" ±%.0f%%", noise*100)
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
		if word := v.word(); word == "missed" || word == "not measured" && !v.given {
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
