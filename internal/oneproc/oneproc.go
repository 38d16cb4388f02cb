// Package oneproc makes a program start with less work for the Go runtime.
//
// It begins with one processor. Packages are initialised, and a command is prepared, by one thread, but each goroutine
// started on the way wakes another thread for an idle processor. That takes a tenth of the start of `steps serve`. A
// command that has more to do calls [runtime.SetDefaultGOMAXPROCS].
//
// And the stack of the main goroutine gets its size at once. Otherwise it is copied to one of twice the size, again and
// again, and each time the tables of all functions on it are read.
package oneproc

import "runtime"

func init() {
	runtime.GOMAXPROCS(1)
	growStack(false)
}

// mainStack is the size of the main goroutine's stack that `steps serve` needs until it is ready.
const mainStack = 24 << 10

// growStack has the runtime make room for its variable when it is called. It fills that only if fill is true, since
// memory that is never written takes no page.
//
//go:noinline
func growStack(fill bool) {
	if fill {
		var room [mainStack]byte
		use(&room)
	}
}

//go:noinline
func use(*[mainStack]byte) {}
