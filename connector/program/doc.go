// Package program finds the step runner of a VM, and puts one there where that is allowed.
//
// [Find] starts the relay of the configured command or asks the command for its version, looks at a VM on which it
// does not start, uploads one of the configured [Binary] files if it may, and returns a [Program]. It keeps nothing:
// package connector calls it once for each connection and remembers the result. The relay that Find starts belongs to
// the connection; all other processes it starts have ended when it returns.
package program
