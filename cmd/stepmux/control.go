package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/instance/control"
)

// controlTimeout bounds the wait for a run's answer.
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
		Short: "Show the VMs of a stepmux run that is under way, and what they do",
		Long:  "Show the VMs of a stepmux run that is under way on this machine, and what they do.\n\n" + controlExitHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usageError(fmt.Errorf("--output %q: use text or json", output))
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
	cmd.Flags().BoolVar(&builds, "builds", false, "show each build too (json always does)")
	return cmd
}

func newDrainCommand() *cobra.Command {
	return newVerbCommand("drain ID...", "Let VMs of a stepmux run take no new builds",
		`Let VMs take no new builds. Those they have go on; when the last has ended, the VM's connection is closed.`,
		(*control.Client).Drain)
}

func newUndrainCommand() *cobra.Command {
	return newVerbCommand("undrain ID...", "Let VMs of a stepmux run take builds again",
		`Let VMs that were drained take builds again.`, (*control.Client).Undrain)
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

// withRun lets use talk to a run.
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
