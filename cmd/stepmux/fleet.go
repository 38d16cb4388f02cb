package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// newVMCommands returns the commands that look after VMs.
func newVMCommands() []*cobra.Command {
	return []*cobra.Command{
		newPsCommand(), newEventsCommand(), newFleetCommand(), newDrainCommand(), newUndrainCommand(),
		newDoctorCommand(), newCacheCommand(),
	}
}

// newFleetCommand returns the commands about VMs that come and go.
func newFleetCommand() *cobra.Command {
	return withCommands(&cobra.Command{
		Use:   "fleet",
		Short: "Explain the VMs of a manager that come and go",
	}, newExplainCommand())
}

func newExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain [ID or LABEL=VALUE]",
		Short: "Say why a VM is there, why no other is made, and why builds wait",
		Long: `Say why a VM is there or leaves. With a label, say it of all VMs that have the label, and why the next
build with this label would wait. Without an argument, say it of all VMs that come and go, and why no more are made.

The VMs of a manager's inventory can be named, too.`,
		Example: "  stepmux fleet explain\n  stepmux fleet explain vm-7\n  stepmux fleet explain os=linux",
		Args:    arguments("[ID or LABEL=VALUE]"),
	}
	return withOperated(cmd, func(ctx context.Context, of pb.ManagerClient, args []string) error {
		status, err := control.Ask(ctx, of)
		if err != nil {
			return err
		}
		return status.Explain(cmd.OutOrStdout(), append(args, "")[0], time.Now())
	})
}
