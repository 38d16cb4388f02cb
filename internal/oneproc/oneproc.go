// Package oneproc makes a program start with less work for the Go runtime. A program imports it for its effect.
//
// The program begins with one processor. One thread initialises the packages and prepares the command; but each
// goroutine that is started on the way would wake another thread for an idle processor. That takes a tenth of the start
// of `steps serve`. A command with more work calls [runtime.SetDefaultGOMAXPROCS].
//
// The stack of the main goroutine gets its final size at once. Otherwise the runtime would copy it to a stack of twice
// the size several times, and read the tables of all functions on it each time.
package oneproc

import (
	"runtime"

	"github.com/stepmux/stepmux/internal/bigstack"
)

func init() {
	runtime.GOMAXPROCS(1)
	bigstack.Grow()
}
