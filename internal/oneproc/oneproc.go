// Package oneproc makes a program begin with one processor of the Go runtime. The initialisation of packages and a
// command's preparations are one thread's work, but each goroutine that they start wakes a thread for an idle processor.
// That takes a tenth of the start of `steps serve`. A command that has more to do calls [runtime.SetDefaultGOMAXPROCS].
package oneproc

import "runtime"

func init() { runtime.GOMAXPROCS(1) }
