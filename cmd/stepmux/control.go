package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
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

// operated is a run or a manager, as ps, drain and undrain see it.
type operated interface {
	Status(ctx context.Context) (control.Status, error)
	Drain(ctx context.Context, id string) error
	Undrain(ctx context.Context, id string) error
}

// managed is a manager.
type managed struct {
	pb.ManagerClient
	note  string
	limit time.Duration
}

// Status implements operated, and so do the methods below.
func (m managed) Status(ctx context.Context) (s control.Status, err error) {
	resp, err := m.ManagerClient.Status(ctx, &pb.StatusRequest{})
	if err == nil {
		err = json.Unmarshal(resp.GetJson(), &s)
	}
	return s, err
}

func (m managed) Drain(ctx context.Context, id string) error {
	req := &pb.DrainRequest{Instances: []string{id}, Note: m.note}
	if m.limit > 0 {
		req.For = durationpb.New(m.limit)
	}
	_, err := m.ManagerClient.Drain(ctx, req)
	return err
}

func (m managed) Undrain(ctx context.Context, id string) error {
	_, err := m.ManagerClient.Undrain(ctx, &pb.UndrainRequest{Instances: []string{id}})
	return err
}

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
	return withOperated(cmd, &managed{}, func(ctx context.Context, of operated, _ []string) error {
		status, err := of.Status(ctx)
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
	m := &managed{}
	cmd := newVerbCommand("drain ID...", "Send no new builds to VMs of a stepmux manager or run",
		`Send no new builds to VMs. Running builds continue; after the last of them the connection to the VM is closed. A
manager remembers this when it restarts.`, m, operated.Drain)
	cmd.Flags().StringVar(&m.note, "note", "", "`TEXT` with the reason, for other operators; ps shows it (managers only)")
	timeFlag(cmd.Flags(), &m.limit, "for", "undrain after this `time` (managers only; default never)")
	return cmd
}

func newUndrainCommand() *cobra.Command {
	return newVerbCommand("undrain ID...", "Send builds to drained VMs again",
		`Send builds to drained VMs again.`, &managed{}, operated.Undrain)
}

func newVerbCommand(
	use, short, long string, m *managed, verb func(operated, context.Context, string) error,
) *cobra.Command {
	long += "\n\n'stepmux ps' shows the IDs."
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: arguments("ID...")}
	return withOperated(cmd, m, func(ctx context.Context, of operated, ids []string) error {
		var unknown []error
		for _, id := range ids {
			err := verb(of, ctx, id)
			if err == nil {
				continue
			}
			others := otherVMs(ctx, of, id)
			if err = fmt.Errorf("%w%s", toldError(err), others); others == "" {
				return errors.Join(append(unknown, err)...)
			}
			unknown = append(unknown, err) // the others are drained or undrained all the same
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
func otherVMs(ctx context.Context, of operated, id string) string {
	status, err := of.Status(ctx)
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

// withOperated returns cmd as a command that connects to a run or a manager and calls use with its arguments. m has
// the flags that only a manager accepts.
func withOperated(
	cmd *cobra.Command, m *managed, use func(context.Context, operated, []string) error,
) *cobra.Command {
	cmd.Long += `

The manager is that of --manager or $` + managerVar + `. Without both, the only run of this user is asked, and if there
is none the manager.

` + controlExitHelp
	path := cmd.Flags().String("control", "", "socket of a run (default that of the only run of this user)")
	var of managerFlag
	of.register(cmd.Flags())
	cmd.MarkFlagsMutuallyExclusive("control", "manager")
	with := func(cmd *cobra.Command, args []string, use func(context.Context, operated, []string) error) error {
		var run *control.Client
		var err error
		managed := of.path != "" || *path == "" && os.Getenv(managerVar) != ""
		if !managed {
			run, err = control.NewClient(*path)
		}
		if errors.Is(err, control.ErrNone) {
			_, missing := os.Lstat(of.socket())
			if managed = missing == nil; !managed {
				err = fmt.Errorf("%w; a manager (--manager) is not at %s either", err, of.socket())
			}
		}
		switch {
		case managed:
			return of.use(cmd, func(ctx context.Context, client pb.ManagerClient) error {
				ctx, cancel := context.WithTimeout(ctx, controlTimeout)
				defer cancel()
				m.ManagerClient = client
				return use(ctx, *m, args)
			})
		case errors.Is(err, control.ErrSeveral):
			return err
		case err != nil:
			return systemError(err)
		case m.note != "" || m.limit != 0:
			return errors.New("--note and --for are for managers")
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), controlTimeout)
		defer cancel()
		return systemError(use(ctx, run, args))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return with(cmd, args, use) }
	if strings.Contains(cmd.Use, "ID") {
		cmd.ValidArgsFunction = completing(func(cmd *cobra.Command, _ []string) (ids []string) {
			// Without an answer there are no completions.
			_ = with(cmd, nil, func(ctx context.Context, of operated, _ []string) (err error) {
				ids, err = vmIDs(ctx, of)
				return err
			})
			return ids
		})
	}
	return cmd
}
