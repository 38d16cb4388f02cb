// Package wire holds what the manager's end and the VM's end must agree on: build IDs, the socket's
// place, the ready marker and the quoting of remote command lines. docs/protocol.md is its text form
// and changes in the same commit.
//
// It does no I/O and imports nothing of this module.
package wire
