// Package connector joins one build to one step runner.
//
// A [Connector] starts `steps serve` on the build's VM over the VM's shared connection, waits until it listens, opens
// bridges to its socket, runs the build's [Job] through them, and at the end makes sure that nothing of the build is
// left on the VM. A [VM] remembers the facts about one VM for all its builds: its step runner (package program) and
// the routes that work there.
//
// The caller owns the connection behind [Lease] and the VM; a Connector owns its serve, its bridges and the lease, and
// Close ends them. docs/protocol.md holds the contract with the step runner. Package instance drives Connectors for a
// fleet; package script runs scripts without a step runner.
package connector
