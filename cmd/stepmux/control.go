package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// controlTimeout bounds the wait for a run's answer.
const controlTimeout = 10 * time.Second

const controlExitHelp = `Exit codes:
  0        done
  2        wrong usage, or --control has to say which of several runs
  3        no run was found, it did not answer, or it has no such VM`

func newPsCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Show the VMs and builds of a stepmux manager or run",
		Long:  "Show the VMs and builds of a stepmux run or a stepmux manager that is running on this machine.",
		Args:  arguments(),
	}
	outputFlag(cmd.Flags(), &output, "text or json")
	builds := cmd.Flags().Bool("builds", false, "also show each build (json always does)")
	return withOperated(cmd, func(ctx context.Context, of pb.ManagerClient, _ []string) error {
		status, err := control.Ask(ctx, of)
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
	var note string
	var limit time.Duration
	cmd := newVerbCommand("drain ID...", "Send no new builds to VMs of a stepmux manager or run",
		`Send no new builds to VMs. Running builds continue; after the last of them the connection to the VM is closed. A
manager remembers this when it restarts.`, func(ctx context.Context, of pb.ManagerClient, ids []string) error {
			req := &pb.DrainRequest{Instances: ids, Note: note}
			if limit > 0 {
				req.For = durationpb.New(limit)
			}
			_, err := of.Drain(ctx, req)
			return err
		})
	cmd.Flags().StringVar(&note, "note", "", "`TEXT` with the reason, for other operators; ps shows it (managers only)")
	timeFlag(cmd.Flags(), &limit, "for", "undrain after this `time` (managers only; default never)")
	return cmd
}

func newUndrainCommand() *cobra.Command {
	return newVerbCommand("undrain ID...", "Send builds to drained VMs again",
		`Send builds to drained VMs again.`, func(ctx context.Context, of pb.ManagerClient, ids []string) error {
			_, err := of.Undrain(ctx, &pb.UndrainRequest{Instances: ids})
			return err
		})
}

// operation asks a run or a manager to do something, with the arguments of a command.
type operation func(ctx context.Context, of pb.ManagerClient, args []string) error

func newVerbCommand(use, short, long string, verb operation) *cobra.Command {
	long += "\n\n'stepmux ps' shows the IDs."
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: arguments("ID...")}
	return withOperated(cmd, func(ctx context.Context, of pb.ManagerClient, ids []string) error {
		var unknown []error
		for _, id := range ids {
			switch err := verb(ctx, of, []string{id}); {
			case err == nil:
			case status.Code(err) == codes.NotFound: // the others are drained or undrained all the same
				unknown = append(unknown, fmt.Errorf("%w%s", toldError(err), otherVMs(ctx, of, id)))
			case len(unknown) == 0:
				return err
			default:
				return errors.Join(append(unknown, toldError(err))...)
			}
		}
		return errors.Join(unknown...)
	})
}

// toldError returns the text of a manager's error without gRPC's prefix.
func toldError(err error) error {
	if told, ok := status.FromError(err); ok && err != nil {
		return errors.New(told.Message())
	}
	return err
}

// maxNamed is the largest number of VMs that a message names.
const maxNamed = 20

// otherVMs lists the VMs of a run or manager that does not have the VM id. It returns "" if it has that VM.
func otherVMs(ctx context.Context, of pb.ManagerClient, id string) string {
	status, err := control.Ask(ctx, of)
	if err != nil {
		return "" // the first error is more useful
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
	return near + " The VMs there are " + strings.Join(names, ", ")
}

// withOperated returns cmd as a command that connects to a run or a manager and calls use with its arguments.
func withOperated(cmd *cobra.Command, use operation) *cobra.Command {
	cmd.Long += `

The manager is that of --manager or $` + managerVar + `. Without both, the only run of this user is asked, and if there
is none the manager.

` + controlExitHelp
	path := cmd.Flags().String("control", "", "socket of a run (default that of the only run of this user)")
	var of managerFlag
	of.register(cmd.Flags())
	cmd.MarkFlagsMutuallyExclusive("control", "manager")
	with := func(cmd *cobra.Command, args []string, use operation) (err error) {
		of.run = *path
		if of.run == "" && of.path == "" && os.Getenv(managerVar) == "" {
			of.run, err = control.Find()
		}
		if errors.Is(err, control.ErrNone) {
			if _, missing := os.Lstat(of.socket()); missing != nil {
				return systemError(fmt.Errorf("%w; a manager (--manager) is not at %s either", err, of.socket()))
			}
		} else if errors.Is(err, control.ErrSeveral) {
			return err
		} else if err != nil {
			return systemError(err)
		}
		return of.use(cmd, func(ctx context.Context, client pb.ManagerClient) error {
			ctx, cancel := context.WithTimeout(ctx, controlTimeout)
			defer cancel()
			return use(ctx, client, args)
		})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return with(cmd, args, use) }
	if strings.Contains(cmd.Use, "ID") {
		cmd.ValidArgsFunction = completing(func(cmd *cobra.Command, _ []string) (ids []string) {
			// Without an answer there are no completions.
			_ = with(cmd, nil, func(ctx context.Context, of pb.ManagerClient, _ []string) (err error) {
				ids, err = vmIDs(ctx, of)
				return err
			})
			return ids
		})
	}
	return cmd
}
