package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/termtext"
)

func newCancelCommand() *cobra.Command {
	var f managerFlag
	cmd := &cobra.Command{
		Use:   "cancel ID...",
		Short: "End builds or pipelines of a manager",
		Long: `End builds of a stepmux manager, whether they wait or run: their processes get SIGTERM, and SIGKILL after ten
seconds. The ID of a pipeline ends its builds, and no other of its jobs begins, but for jobs of a workflow whose if
holds, as with always(): a second cancel ends these. PIPELINE/JOB ends the build of one job.
Builds and pipelines that have ended are left as they are.

` + managerExitHelp,
		Args: arguments("ID..."),
	}
	f.register(cmd.Flags())
	cmd.ValidArgsFunction = f.completeBy(
		builds(func(b *pb.Build) bool { return b.GetPhase() != pb.Build_ended }),
		pipelineIDs(func(p *pb.Pipeline) bool { return p.GetPhase() != pb.Pipeline_ended }),
	)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
			var unknown []error
			for _, arg := range args {
				id, err := buildNamed(ctx, m, arg, false)
				if err == nil {
					_, err = m.Cancel(ctx, &pb.CancelRequest{Id: id})
				}
				if status.Code(err) == codes.NotFound {
					unknown = append(unknown, toldError(err)) // the others are canceled all the same
				} else if err != nil {
					return err
				}
			}
			return errors.Join(unknown...)
		})
	}
	return cmd
}

func newBuildsCommand() *cobra.Command {
	var f managerFlag
	var output, phase, file, instance string
	cmd := &cobra.Command{
		Use:   "builds",
		Short: "List the builds of a manager",
		Long: `List the builds of a stepmux manager: those that wait, the oldest first, then the others, the latest first.

` + managerExitHelp,
		Args: arguments(),
	}
	fl := cmd.Flags()
	f.register(fl)
	outputFlag(fl, &output, "text, or json for an object per build")
	choiceFlag(fl, &phase, "phase", "list only builds that are queued, running or ended", "queued", "running", "ended")
	fl.StringVar(&file, "file", "", "list only builds with this `NAME` in the column FILE")
	fl.StringVar(&instance, "instance", "", "list only builds on the VM with this `ID`")
	_ = cmd.RegisterFlagCompletionFunc("instance", f.completeVMs()) // cannot fail: the flag exists
	limit := fl.Int("limit", 100, "list at most `N` builds, up to 10000")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *limit < 1 || *limit > 10_000 {
			return fmt.Errorf("--limit %d: use 1 to 10000", *limit)
		}
		return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
			list, err := m.List(ctx, &pb.ListRequest{
				Phase: pb.Build_Phase(pb.Build_Phase_value[phase]), Limit: int32(*limit), File: file, Instance: instance,
			})
			if err != nil {
				return err
			}
			if output == "json" {
				for _, b := range list.GetBuilds() {
					if err := writeJSON(cmd.OutOrStdout(), b.JSON()); err != nil {
						return err
					}
				}
				return nil
			}
			return writeBuilds(cmd.OutOrStdout(), list)
		})
	}
	return cmd
}

func writeBuilds(to io.Writer, list *pb.ListResponse) error {
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "BUILD\tPHASE\tRESULT\tINSTANCE\tSUBMITTED\tTOOK\tWARNINGS\tFILE")
	for _, b := range list.GetBuilds() {
		result, took := "-", "-"
		if r := b.GetResult(); r != nil {
			result = cmp.Or(r.GetReason(), "success")
			if r.GetReason() == string(instance.ScriptFailure) && r.GetExitCode() != 0 {
				result = fmt.Sprintf("%s %d", result, r.GetExitCode())
			}
		}
		if b.GetStarted() != nil {
			end := time.Now()
			if b.GetEndedAt() != nil {
				end = b.GetEndedAt().AsTime()
			}
			took = max(end.Sub(b.GetStarted().AsTime()), 0).Round(time.Millisecond).String() // clocks differ
		}
		warnings := "-" // about its scripts
		if n := len(b.GetWarnings()); n > 0 {
			warnings = strconv.Itoa(n)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.GetId(), b.GetPhase(), termtext.Line(result),
			termtext.Line(cmp.Or(b.GetInstance(), "-")), b.GetSubmitted().AsTime().Local().Format(time.DateTime), took,
			warnings, termtext.Line(strings.TrimSpace(cmp.Or(b.GetStepsFile(), "-")+" "+b.GetJob())))
	}
	fmt.Fprintf(t, "%s waiting, %d running\n", plural.Count(list.GetQueued(), "build"), list.GetRunning())
	return t.Flush()
}
