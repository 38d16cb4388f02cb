// Package oneproc makes a program start with less work for the Go runtime. A program imports it for its effect.
//
// The program begins with one processor. One thread initialises the packages and prepares the command; but each
// goroutine that is started on the way would wake another thread for an idle processor. That takes a tenth of the start
// of `steps serve`. A command with more work calls [runtime.SetDefaultGOMAXPROCS].
//
// The stack of the main goroutine gets its final size at once. Otherwise the runtime would copy it to a stack of twice
// the size several times, and read the tables of all functions on it each time.
package oneproc

import "runtime"

func init() {
	runtime.GOMAXPROCS(1)
	growStack(false)
}

// mainStack is the size of the main goroutine's stack until `steps serve` is ready.
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
