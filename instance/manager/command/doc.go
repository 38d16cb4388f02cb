// Package command runs commands on the VM of an executor, for the clients of a manager's leases: by its service, and by
// SSH.
//
// A [Runner] runs a [Line]. [Inputs] are on the way to the command: its input and its signals. Run waits for the end of
// the command and of its own goroutines, so nothing is to be closed but the Inputs, whose Stop ends every wait.
package command
