// The stepmux-init program is the init of builds (see package remote/proc), and nothing else. It is no file of its own:
// internal/joinelf puts it into the file of stepmux-vm, whose entry then is the one in entry_*.s. So the start of an
// init is that of a small program, and each stepmux-vm has the init that was built with it.
package main

import (
	"os"

	_ "github.com/stepmux/stepmux/internal/oneproc" // makes the program start faster
	"github.com/stepmux/stepmux/remote/proc"
)

func main() {
	proc.Main()
	_, _ = os.Stderr.WriteString("stepmux: __init is started by stepmux itself, and does nothing by hand\n")
	os.Exit(2)
}
