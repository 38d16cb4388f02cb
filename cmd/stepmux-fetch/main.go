// The stepmux-fetch program is the part of the VM's end that needs the network: it fetches steps, clones repositories,
// and transfers artifacts and caches. It stands beside stepmux-vm, which replaces itself by stepmux-fetch for these
// commands. Package remote/commands/network has them.
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
