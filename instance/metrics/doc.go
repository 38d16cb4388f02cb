// Package metrics tells Prometheus how a manager fares.
//
// A [Metrics] is fed by the hooks of mux and pool and by the reports of builds, and asks the Provider when it
// is read; a [Server] serves it over HTTP. Base units throughout; no build has a label of its own.
package metrics
