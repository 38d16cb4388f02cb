// Package control lets an operator talk to a running manager: see its instances, drain them.
//
// The manager owns a [Server], which listens on a unix socket until its Close; only the manager's user and root can
// use it. A [Client] connects to it and returns the [Status]. They speak HTTP with JSON: GET /v1/status, and POST
// /v1/instances/ID/drain and undrain. The commands are `stepmux ps`, `drain` and `undrain`; see docs/fleet.md.
package control
