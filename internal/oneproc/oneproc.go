// Package oneproc makes a program begin with one processor of the Go runtime. Packages are initialised, and a command
// is prepared, by one thread, but each goroutine started on the way wakes another thread for an idle processor. That
// takes a tenth of the start of `steps serve`. A command that has more to do calls [runtime.SetDefaultGOMAXPROCS].
package oneproc

import "runtime"

func init() { runtime.GOMAXPROCS(1) }
