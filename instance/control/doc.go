// Package control lets an operator talk to a running manager: see its instances, drain them.
//
// A [Server] listens on a unix socket that only its own user, and root, can use. A [Client] asks it. Between
// them is HTTP with JSON: GET /v1/status, and POST /v1/instances/ID/drain and undrain.
package control
