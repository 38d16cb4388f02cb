// Package control lets an operator talk to a running manager: see its instances, drain them.
//
// A run owns a [Server], which listens on a unix socket until its Close; only the run's user and root can use it. It
// answers the calls Status, Drain and Undrain of the service of package managerv1, as package manager does with all
// calls of it. [NewServer] is the gRPC server of both. managerv1.Dial connects a client, [Find] finds the socket of a
// run, and [Ask] returns the [Status]. The commands are `stepmux ps`, `drain` and `undrain`; see docs/fleet.md.
package control
