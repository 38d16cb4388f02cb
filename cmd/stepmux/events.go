package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/termtext"
)

// event is an event as JSON.
type event struct {
	At       time.Time `json:"at"`
	Kind     string    `json:"kind"`
	Instance string    `json:"instance,omitempty"`
	Group    string    `json:"group,omitempty"`
	Note     string    `json:"note,omitempty"`
}

func newEventsCommand() *cobra.Command {
	var of managerFlag
	var output string
	var since time.Duration
	req := &pb.EventsRequest{}
	cmd := &cobra.Command{
		Use:   "events [VM or GROUP]...",
		Short: "Tell what happened to the VMs of a manager",
		Long: `Tell what happened to the VMs of a manager, the oldest first: of all, or of those that are named.

ill      it does not answer, fails builds or lacks what they need: the VM gets no builds
well     it takes builds again
create   VMs of a group that comes and goes are made
ready    a new VM was reached
drain    a VM takes no more builds, because it is not needed or is to be replaced
undrain  it takes builds again
delete   a VM is deleted
gone     the source of the VMs does not have it any more
failed   the source of the VMs has failed

The last 10,000 events are kept.

` + managerExitHelp,
		Example: "  stepmux events --since 1h\n  stepmux events vm-7\n  stepmux events linux --follow",
		Args:    cobra.ArbitraryArgs,
	}
	of.register(cmd.Flags())
	outputFlag(cmd.Flags(), &output, "text, or a line of json for each event")
	timeFlag(cmd.Flags(), &since, "since", "events of the last `time`, such as 1h (default all)")
	cmd.Flags().BoolVarP(&req.Follow, "follow", "f", false, "go on with what happens from now on")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req.About = args
		if since > 0 {
			req.Since = timestamppb.New(time.Now().Add(-since))
		}
		return of.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
			return showEvents(ctx, m, req, func(e event) error {
				if output == "json" {
					return writeJSON(cmd.OutOrStdout(), e)
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), e.line())
				return err
			})
		})
	}
	return cmd
}

// showEvents passes the events to show.
func showEvents(ctx context.Context, m pb.ManagerClient, req *pb.EventsRequest, show func(event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m.Events(ctx, req)
	if err != nil {
		return err
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = show(event{e.GetAt().AsTime(), e.GetKind(), e.GetInstance(), e.GetGroup(), e.GetNote()})
		}
		if err != nil {
			return err
		}
	}
}

// line returns an event as a line of text.
func (e event) line() string {
	text := fmt.Sprintf("%s  %-7s", e.At.Local().Format(time.DateTime), termtext.Line(e.Kind))
	if e.Instance != "" {
		text += "  " + termtext.Line(e.Instance)
	}
	if e.Group != "" {
		text += "  group " + termtext.Line(e.Group)
	}
	if e.Note != "" {
		text += ": " + termtext.Line(e.Note)
	}
	return text
}
