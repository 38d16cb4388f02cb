package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/instance/control"
)

// controlTimeout bounds the wait for the answer of a run.
const controlTimeout = 10 * time.Second

const controlExitHelp = `Exit codes:
  0        done
  2        wrong usage, or --control has to say which of several runs
  3        no run was found, it did not answer, or it has no such VM`

func newPsCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Show the VMs and builds of a running stepmux run",
		Long:  "Show the VMs and builds of a stepmux run that is running on this machine.",
		Args:  arguments(),
	}
	outputFlag(cmd.Flags(), &output, "text or json")
	builds := cmd.Flags().Bool("builds", false, "also show each build (json always does)")
	return withRun(cmd, func(ctx context.Context, run *control.Client, _ []string) error {
		status, err := run.Status(ctx)
		if err != nil {
			return err
		}
		if output == "json" {
			return writeJSON(cmd.OutOrStdout(), status)
		}
		return status.WriteText(cmd.OutOrStdout(), time.Now(), *builds)
	})
}

func newDrainCommand() *cobra.Command {
	return newVerbCommand("drain ID...", "Send no new builds to VMs of a stepmux run",
		`Send no new builds to VMs. Running builds go on; after the last of them the connection to the VM is closed.`,
		(*control.Client).Drain)
}

func newUndrainCommand() *cobra.Command {
	return newVerbCommand("undrain ID...", "Send builds to drained VMs of a stepmux run again",
		`Send builds to drained VMs again.`, (*control.Client).Undrain)
}

func newVerbCommand(use, short, long string, verb func(*control.Client, context.Context, string) error) *cobra.Command {
	long += "\n\n'stepmux ps' shows the IDs."
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: arguments("ID...")}
	return withRun(cmd, func(ctx context.Context, run *control.Client, ids []string) error {
		for _, id := range ids {
			if err := verb(run, ctx, id); err != nil {
				return fmt.Errorf("%w%s", err, otherVMs(ctx, run, id))
			}
		}
		return nil
	})
}

// maxNamed is how many VMs a message names.
const maxNamed = 20

// otherVMs names the VMs of a run that does not have the VM id. It returns "" if the run has it.
func otherVMs(ctx context.Context, run *control.Client, id string) string {
	status, err := run.Status(ctx)
	if err != nil {
		return "" // the first error tells more
	}
	var names []string
	for _, vm := range status.Instances {
		names = append(names, vm.ID)
	}
	if slices.Contains(names, id) {
		return ""
	}
	near := cmp.Or(meant("%q", id, names), ".")
	if len(names) > maxNamed {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", len(names)-maxNamed))
	}
	return near + " The VMs of this run are " + strings.Join(names, ", ")
}

// withRun returns cmd, which connects to a run and calls use with its arguments.
func withRun(cmd *cobra.Command, use func(context.Context, *control.Client, []string) error) *cobra.Command {
	cmd.Long += "\n\n" + controlExitHelp
	path := cmd.Flags().String("control", "", "socket of the run (default that of the only run of this user)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run, err := control.NewClient(*path)
		switch {
		case errors.Is(err, control.ErrSeveral):
			return err
		case err != nil:
			return systemError(err)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), controlTimeout)
		defer cancel()
		return systemError(use(ctx, run, args))
	}
	return cmd
}
