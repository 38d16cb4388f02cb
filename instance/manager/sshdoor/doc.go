// Package sshdoor lets SSH clients run commands on the VMs of a manager, and connect to addresses there.
//
// [Serve] answers on a listener, for a [Host]: the manager, which gives each login a [Slot]. It owns a goroutine for
// each connection, and returns when all have ended. sshdoor.go lets clients in, login.go serves those that have logged
// in. The command lines run as those of leases do: package command.
package sshdoor
