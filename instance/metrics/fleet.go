package metrics

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/pool"
)

// fleet collects the state of a Provider's instances at each scrape.
type fleet struct {
	provider *instance.Provider
	backlog  *atomic.Pointer[backlogFunc] // of a manager with a queue; else nil is in it
}

type backlogFunc func(context.Context) (control.Backlog, error)

// backlogTimeout bounds the wait of a scrape for the backlog.
const backlogTimeout = 5 * time.Second

var (
	instances   = desc("instances", "Instances, by state.", "state")
	connections = desc("connections", "Connections to instances and jump hosts, by state.", "state")
	capacity    = desc("slots", "Slots of the instances that take builds.")
	busy        = desc("slots_busy", "Slots of the instances that take builds, with a build.")
	free        = desc("slots_free", "Slots of the instances that take builds, without a build.")
	running     = desc("builds_running", "Builds on all instances.")
	waiting     = desc("builds_waiting", "Builds that wait for a slot.")

	queued = desc("queue_builds", "Builds and leases that wait for a manager, by the labels that they need and by why.",
		"labels", "cause")
	oldest      = desc("queue_oldest_seconds", "Age of the oldest build in the queue.")
	stateBytes  = desc("state_bytes", "Size of the state directory, by its directories.", "directory")
	logBytes    = desc("logs_bytes", "Size of all logs.")
	logsRemoved = desc("logs_removed_total",
		"Pieces of logs that were removed, because they were too old or all logs too large.")

	serverReady = desc("server_ready", "1 if a server that the manager takes jobs from answers, else 0.", "server")
	serverJobs  = desc("server_jobs", "Jobs of a server that run, or are reported.", "server")
	serverTaken = desc("server_jobs_total", "Jobs that were taken from a server.", "server")

	groupVMs = desc("group_vms", "VMs of a group that come and go, by state: ready, making, leaving or other.", "group",
		"state")
	groupWanted = desc("group_slots_wanted", "Slots that the policy of a group wants.", "group")
	vmEvents    = desc("instance_events_total", "What happened to VMs, by kind, as stepmux events tells it.", "kind")
	groupFails  = desc("group_source_errors_total", "Failed operations of the source of a group's VMs.", "group")

	state     = desc("instance_state", "1 for the state of an instance.", "instance", "state")
	isolation = desc("instance_isolation", "1 for the isolation of the last build on an instance.", "instance", "level")

	sessionsOpen     = desc("sessions_open", "Sessions that are open on an instance's connection.", "instance")
	sessionsReserved = desc("sessions_reserved", "Sessions that are open or about to be on an instance's connection.",
		"instance")
	sessionsWaiting = desc("sessions_waiting", "Callers that wait for a session on an instance's connection.", "instance")
	sessionsLimit   = desc("sessions_limit",
		"Sessions that an instance's server allows on a connection, and how that is known.", "instance", "source")
	channelsOpen = desc("channels_open",
		"Channels of an instance's connection that are no sessions (route native), and streams of its relay (route relay).",
		"instance", "route")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// Describe implements prometheus.Collector.
func (f fleet) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		instances, connections, capacity, busy, free, running, waiting, queued, oldest, stateBytes, logBytes, logsRemoved,
		serverReady, serverJobs, serverTaken, groupVMs, groupWanted, groupFails, vmEvents,
		state, isolation,
		sessionsOpen, sessionsReserved, sessionsWaiting, sessionsLimit, channelsOpen,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (f fleet) Collect(out chan<- prometheus.Metric) {
	stat := f.provider.Stat()
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	states, conns := map[instance.State]int{}, map[pool.State]int{}
	var slots control.Slots
	builds := 0
	for _, in := range stat.Instances {
		states[in.State]++
		conns[in.ConnState]++
		builds += in.Used
		slots.Add(in.State, in.Capacity, in.Used)
		gauge(state, 1, in.ID, string(in.State))
		if in.Isolation.Level != "" {
			gauge(isolation, 1, in.ID, string(in.Isolation.Level))
		}
		if in.ConnState != pool.Up && in.ConnState != pool.Leaving {
			continue
		}
		sessions := in.Conn.Sessions
		gauge(sessionsOpen, sessions.Open, in.ID)
		gauge(sessionsReserved, sessions.Taken, in.ID)
		gauge(sessionsWaiting, sessions.Waiting, in.ID)
		gauge(channelsOpen, in.Conn.Streams, in.ID, "native")
		gauge(channelsOpen, in.Conn.Relayed, in.ID, "relay")
		if sessions.Limit > 0 {
			gauge(sessionsLimit, sessions.Limit, in.ID, sessions.LimitSource())
		}
	}
	for _, j := range stat.JumpHosts {
		conns[j.ConnState]++
	}
	for _, s := range []instance.State{
		instance.Ready, instance.Suspect, instance.Quarantined, instance.Draining, instance.UsedUp, instance.Elsewhere,
		instance.Removed,
	} {
		gauge(instances, states[s], string(s))
	}
	for _, s := range []pool.State{pool.None, pool.Dialing, pool.Up, pool.Leaving} {
		gauge(connections, conns[s], string(s))
	}
	gauge(capacity, slots.Total)
	gauge(busy, slots.Busy)
	gauge(free, slots.Free)
	gauge(running, builds)
	if ask := f.backlog.Load(); ask != nil {
		collectBacklog(out, *ask)
		return
	}
	gauge(waiting, stat.Waiting)
}

// collectBacklog reports the work that waits for a manager. Without an answer of its store it tells nothing of that.
func collectBacklog(out chan<- prometheus.Metric, ask backlogFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), backlogTimeout)
	defer cancel()
	b, err := ask(ctx)
	if err != nil {
		return
	}
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	all := 0
	for why, n := range b.Waiting {
		all += n
		tell(queued, prometheus.GaugeValue, float64(n), why.Labels, why.Cause)
	}
	tell(waiting, prometheus.GaugeValue, float64(all))
	tell(oldest, prometheus.GaugeValue, b.Oldest.Seconds())
	for dir, n := range b.State {
		tell(stateBytes, prometheus.GaugeValue, float64(n), dir)
	}
	tell(logBytes, prometheus.GaugeValue, float64(b.LogBytes))
	tell(logsRemoved, prometheus.CounterValue, float64(b.LogsRemoved))
	for _, s := range b.Servers {
		ready := 0.0
		if s.Reason == "" {
			ready = 1
		}
		tell(serverReady, prometheus.GaugeValue, ready, s.Name)
		tell(serverJobs, prometheus.GaugeValue, float64(s.Jobs), s.Name)
		tell(serverTaken, prometheus.CounterValue, float64(s.Taken), s.Name)
	}
	for kind, n := range b.Events {
		tell(vmEvents, prometheus.CounterValue, float64(n), kind)
	}
	for _, g := range b.Groups {
		tell(groupFails, prometheus.CounterValue, float64(g.Failures), g.Name)
		if !g.Scales { // another manager tells
			continue
		}
		for state, n := range map[string]int{"ready": g.Ready, "making": g.Making, "leaving": g.Leaving, "other": g.Other} {
			tell(groupVMs, prometheus.GaugeValue, float64(n), g.Name, state)
		}
		tell(groupWanted, prometheus.GaugeValue, float64(g.Wanted), g.Name)
	}
}
