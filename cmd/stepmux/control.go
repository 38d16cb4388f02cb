package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/instance/control"
)

// controlTimeout bounds the wait for the answer of a run.
const controlTimeout = 10 * time.Second

const controlExitHelp = `Exit codes:
  0        done
  2        wrong usage
  3        no run was found, it did not answer, or it has no such VM`

func newPsCommand() *cobra.Command {
	var path, output string
	var builds bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Show the VMs and builds of a running stepmux run",
		Long:  "Show the VMs and builds of a stepmux run that is running on this machine.\n\n" + controlExitHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return usageError(err)
			}
			return withRun(cmd, path, func(ctx context.Context, run *control.Client) error {
				status, err := run.Status(ctx)
				if err != nil {
					return err
				}
				if output == "json" {
					writeJSON(cmd.OutOrStdout(), status)
					return nil
				}
				return status.WriteText(cmd.OutOrStdout(), time.Now(), builds)
			})
		},
	}
	controlFlag(cmd, &path)
	cmd.Flags().StringVar(&output, "output", "text", "text or json")
	cmd.Flags().BoolVar(&builds, "builds", false, "also show each build (json always does)")
	return cmd
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
	var path string
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long + "\n\n'stepmux ps' shows the IDs.\n\n" + controlExitHelp,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return withRun(cmd, path, func(ctx context.Context, run *control.Client) error {
				for _, id := range ids {
					if err := verb(run, ctx, id); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	controlFlag(cmd, &path)
	return cmd
}

func controlFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "control", "", "socket of the run (default that of the only run of this user)")
}

// withRun connects to a run and calls use.
func withRun(cmd *cobra.Command, path string, use func(context.Context, *control.Client) error) error {
	run, err := control.NewClient(path)
	if err != nil {
		return systemError(err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), controlTimeout)
	defer cancel()
	if err := use(ctx, run); err != nil {
		return systemError(err)
	}
	return nil
}
