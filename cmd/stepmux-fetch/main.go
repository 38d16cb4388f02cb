// The stepmux-fetch program: the part of the VM's end that needs the network. It is beside stepmux-vm, which becomes it
// for the commands that fetch steps, clone repositories, and bring artifacts and caches.
package main

import (
	"os"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/commands/network"
)

func main() {
	program := commands.Program{Name: wire.FetchProgram, Sets: []commands.Set{network.Commands}, Long: network.Long}
	os.Exit(program.Run(os.Args))
}
