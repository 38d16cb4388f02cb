// The stepmux-vm program: the VM's end of stepmux and nothing else. The manager carries it and brings it to VMs.
package main

import (
	"os"

	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/proc"
)

func main() {
	proc.Main() // this program is also the init of the processes it starts
	os.Exit(commands.Program{Name: "stepmux-vm"}.Run(os.Args))
}
