package main

import (
	"errors"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/commands/doors"
	"github.com/stepmux/stepmux/remote/commands/network"
)

// vmsEnd is the VM's end in this program: the same commands as in stepmux-vm and stepmux-fetch.
var vmsEnd = commands.Program{
	Name: "stepmux", Sets: []commands.Set{doors.Commands, network.Commands}, Long: network.Long, Carries: platforms,
}

func newStepsCommand() *cobra.Command {
	return delegate("steps", "The VM's end: the commands that a manager starts there", vmsEnd.Steps)
}

func newVersionCommand() *cobra.Command {
	return delegate("version", "Print the version, and the VM's ends that this program carries", vmsEnd.Version)
}

// newHelperCommands returns the commands, beside steps, that the scripts of a GitLab manager call.
func newHelperCommands() (cmds []*cobra.Command) {
	names := commands.HelperNames()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		cmds = append(cmds, delegate(name, names[name], func(args []string) int {
			code, _ := vmsEnd.Helper(name, args)
			return code
		}))
	}
	return cmds
}

// errShown is the error of a VM's end command that has already printed its error.
var errShown = errors.New("the command has shown its error")

// delegate returns a command that passes all its arguments to run.
func delegate(name, short string, run func(args []string) int) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if code := run(args); code != 0 {
				return withCode(code, errShown)
			}
			return nil
		},
	}
}
