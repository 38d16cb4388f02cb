package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/pool"
)

// fleet collects the state of a Provider's instances at each scrape.
type fleet struct{ provider *instance.Provider }

var (
	instances   = desc("instances", "Instances, by state.", "state")
	connections = desc("connections", "Connections to instances and jump hosts, by state.", "state")
	capacity    = desc("slots", "Builds that the instances in service take at once.")
	running     = desc("builds_running", "Builds that have a slot.")
	waiting     = desc("builds_waiting", "Builds that wait for a slot.")

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
		instances, connections, capacity, running, waiting, state, isolation,
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
	slots, builds := 0, 0
	for _, in := range stat.Instances {
		states[in.State]++
		conns[in.ConnState]++
		builds += in.Used
		if in.State == instance.Ready || in.State == instance.Suspect {
			slots += in.Capacity
		}
		gauge(state, 1, in.ID, string(in.State))
		if in.Isolation.Level != "" {
			gauge(isolation, 1, in.ID, in.Isolation.Level)
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
	gauge(capacity, slots)
	gauge(running, builds)
	gauge(waiting, stat.Waiting)
}
