// Package metrics exports a manager's metrics to Prometheus.
//
// A [Metrics] counts the events of mux and pool, which it gets by their Trace hooks, and the ends of builds. At each
// scrape it asks the Provider for the state of its instances. A [Server] serves it over HTTP until its Close. All
// values are in base units; no build has a label of its own. docs/fleet.md lists the metrics.
package metrics
