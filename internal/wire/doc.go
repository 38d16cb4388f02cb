// Package wire holds the contracts between the manager's end and the VM's end: build IDs ([BuildID], [SocketPath]), the
// ready marker ([MarkerScanner]), the quoting of command lines ([Quote]), a script's end ([End]), a program's version
// ([Program]), a build's secret ([Secret]) and the relay's protocol ([RelayFrame] and the types named Relay).
//
// It starts no goroutine and imports no other package of this module. docs/protocol.md describes the same contracts and
// changes in the same commit.
package wire
