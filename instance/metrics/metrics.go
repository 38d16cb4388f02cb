package metrics

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/mux"
)

// Metrics holds the metrics of a manager. It is safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	backlog  atomic.Pointer[backlogFunc]

	dials     *prometheus.HistogramVec
	phases    *prometheus.HistogramVec
	channels  *prometheus.HistogramVec
	refusals  prometheus.Counter
	keepalive prometheus.Observer
	closed    *prometheus.CounterVec
	builds    *prometheus.CounterVec
	took      *prometheus.HistogramVec
	waited    prometheus.Observer
	left      prometheus.Counter
	cpu       prometheus.Counter
	peak      prometheus.Observer
	largest   prometheus.Observer
}

// New returns empty Metrics for a program of this version.
func New(version string) *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		opts := prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}
		return promauto.With(registry).NewHistogramVec(opts, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}
		return promauto.With(registry).NewCounterVec(opts, labels)
	}
	m := &Metrics{
		registry: registry,
		dials: histogram("dial_seconds", "Time to connect to an instance and log in, by how that went.",
			prometheus.ExponentialBuckets(0.01, 2, 13), "result"),
		phases: histogram("dial_phase_seconds", "Time of each phase of a dial.",
			prometheus.ExponentialBuckets(0.001, 2, 15), "phase"),
		channels: histogram("channel_open_seconds", "Time to open a channel, by route and how that went.",
			prometheus.ExponentialBuckets(0.0001, 2.5, 13), "route", "result"),
		refusals: counter("session_refusals_total",
			"Sessions that servers refused because they allow no more on a connection.").WithLabelValues(),
		keepalive: histogram("keepalive_rtt_seconds", "Time to a sign of life of an instance that was asked for one.",
			prometheus.ExponentialBuckets(0.0001, 2.5, 13)).WithLabelValues(),
		closed: counter("connections_closed_total", "Connections that left service, by reason.", "reason"),
		builds: counter("builds_total", "Builds that ended, by result: success or the reason of the failure.", "result"),
		took: histogram("build_seconds", "Time of builds that had a slot, from there to the end of the clean-up, by result.",
			prometheus.ExponentialBuckets(0.05, 2, 18), "result"),
		waited: histogram("build_wait_seconds", "Time from the request for a build to its slot.",
			prometheus.ExponentialBuckets(0.001, 3, 16)).WithLabelValues(),
		left: counter("builds_left_total", "Builds that may have left something on their instance.").WithLabelValues(),
		cpu: counter("builds_cpu_seconds_total", "Processor time of builds that ended, as their instances told.").
			WithLabelValues(),
		peak: histogram("build_peak_memory_bytes", "The most memory of a build that has a limit of it.",
			prometheus.ExponentialBuckets(16<<20, 2, 12)).WithLabelValues(),
		largest: histogram("build_largest_process_bytes", "Resident memory of a build's largest process.",
			prometheus.ExponentialBuckets(16<<20, 2, 12)).WithLabelValues(),
	}
	// Create all series at the beginning, so that the first event shows as an increase.
	for _, reason := range []string{
		"idle", "age", "shutdown", "reconfigured", "not needed", "keepalive", "read", "write", "other",
	} {
		m.closed.WithLabelValues(reason)
	}
	for _, result := range []instance.FailureReason{
		success, instance.ScriptFailure, instance.RunnerSystemFailure,
		instance.ConfigurationError, instance.JobCanceled, instance.JobExecutionTimeout,
	} {
		m.builds.WithLabelValues(string(result))
		m.took.WithLabelValues(string(result))
	}
	info := prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1, with the version of the program.",
		ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
	}
	promauto.With(registry).NewGauge(info).Set(1)
	return m
}

const (
	namespace = "stepmux"
	success   = "success"
)

// Watch adds the state of p's instances to each scrape. Call it once.
func (m *Metrics) Watch(p *instance.Provider) { m.registry.MustRegister(fleet{p, &m.backlog}) }

// WatchBacklog adds the work that waits for a manager, and the size of its state, to each scrape.
func (m *Metrics) WatchBacklog(ask func(context.Context) (control.Backlog, error)) {
	asked := backlogFunc(ask)
	m.backlog.Store(&asked)
}

// Retired counts a connection that has left service. It is for instance.Config.Retired.
func (m *Metrics) Retired(_ string, cause error) {
	m.closed.WithLabelValues(instance.CloseReason(cause)).Inc()
}

// Dialed measures an attempt to connect. It is for instance.Config.DialDone.
func (m *Metrics) Dialed(_ string, _ int, took time.Duration, err error) {
	m.dials.WithLabelValues(dialResult(err)).Observe(took.Seconds())
}

// ConnTrace returns hooks for instance.Config.ConnTrace.
func (m *Metrics) ConnTrace() *mux.Trace {
	return &mux.Trace{
		DialPhase: func(phase string, took time.Duration, _ error) {
			m.phases.WithLabelValues(phase).Observe(took.Seconds())
		},
		ChannelOpen: func(kind mux.ChannelKind, took time.Duration, err error) {
			m.channels.WithLabelValues(string(kind), result(err)).Observe(took.Seconds())
		},
		Refused:   m.refusals.Inc,
		Keepalive: func(rtt time.Duration) { m.keepalive.Observe(rtt.Seconds()) },
	}
}

// Ended counts a finished build.
func (m *Metrics) Ended(r batch.Report) {
	reason := instance.FailureReason(success)
	if r.Err != nil {
		reason = r.Err.Reason
	}
	m.builds.WithLabelValues(string(reason)).Inc()
	if r.Duration > 0 {
		m.took.WithLabelValues(string(reason)).Observe(r.Duration.Seconds())
		m.waited.Observe(r.Waited.Seconds())
	}
	if len(r.Left) > 0 {
		m.left.Inc()
	}
	m.cpu.Add(r.Usage.CPU)
	if r.Usage.PeakMemory > 0 {
		m.peak.Observe(float64(r.Usage.PeakMemory))
	}
	if r.Usage.LargestProcess > 0 {
		m.largest.Observe(float64(r.Usage.LargestProcess))
	}
}

// Handler serves the metrics in Prometheus's text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.InstrumentMetricHandler(m.registry,
		promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

// dialResult returns "ok", or the stage at which a dial failed.
func dialResult(err error) string {
	if failed := (*mux.DialError)(nil); errors.As(err, &failed) {
		return failed.Stage
	}
	return result(err)
}
