// Package connector joins one build to one step runner.
//
// A [Connector] starts `steps serve` on the build's VM over the VM's shared connection, waits until
// it listens, opens bridges to its socket, runs the build's job through them, and in the end sees to
// it that nothing of the build is left on the VM. It is the only package that knows connections,
// leases and the wire contract (docs/protocol.md) together.
package connector
