// The stepmux-vm program is the VM's end of stepmux and nothing else. The manager carries it and brings it to VMs, with
// stepmux-fetch beside it. Package remote/commands has the command line, package remote the work.
package main

import (
	"os"

	_ "github.com/stepmux/stepmux/internal/oneproc" // makes the program start faster
	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/commands/doors"
	"github.com/stepmux/stepmux/remote/proc"
)

func main() {
	proc.Main() // this program is also the init of the processes it starts
	program := commands.Program{
		Name: "stepmux-vm", Sets: []commands.Set{doors.Commands}, Beside: commands.ToFetchProgram,
	}
	os.Exit(program.Run(os.Args))
}
