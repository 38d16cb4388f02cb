package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/termtext"
)

// followPipeline passes a pipeline to take, with follow each time it has changed until it does not go on by itself, and
// returns it as it is then. While the manager restarts, it waits.
func followPipeline(
	ctx context.Context, m pb.ManagerClient, id string, follow bool, take func(*pb.Pipeline) error,
) (last *pb.Pipeline, err error) {
	var away time.Time // when the manager was lost; zero while it answers
	once := func() error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := m.GetPipeline(ctx, &pb.GetPipelineRequest{Id: id, Follow: follow})
		if err != nil {
			return err
		}
		for {
			p, err := stream.Recv()
			if errors.Is(err, io.EOF) && (!follow || isAtRest(last)) {
				return nil
			}
			if errors.Is(err, io.EOF) {
				return status.Error(codes.Unavailable, "the manager did not say how the pipeline ended")
			}
			if err != nil {
				return err
			}
			last, away = p, time.Time{}
			if err := take(p); err != nil {
				return err
			}
		}
	}
	for {
		began := time.Now()
		err := once()
		if err == nil || status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return last, err
		}
		if away.IsZero() || time.Since(began) > answerTime {
			away = time.Now()
		} else if time.Since(away) > awayLimit {
			return nil, err
		}
		if err := pause.For(ctx, awayPause); err != nil {
			return nil, err
		}
	}
}

// isAtRest reports whether a pipeline does not go on by itself.
func isAtRest(p *pb.Pipeline) bool {
	return p.GetPhase() == pb.Pipeline_ended || p.GetPhase() == pb.Pipeline_blocked
}

// awaitPipeline shows the output of the jobs of a pipeline and how they ended, and returns its exit code as an error.
// followed are builds that are not shown. files are those for reports.
func awaitPipeline(
	ctx context.Context, cmd *cobra.Command, m pb.ManagerClient, id string, followed map[string]bool, files *wholeFlags,
) (err error) {
	ctx, noReader := context.WithCancelCause(ctx)
	defer noReader(nil)
	show := newReporter("text", cmd.OutOrStdout(), cmd.ErrOrStderr(), func(err error) {
		noReader(fmt.Errorf("the output of the jobs cannot be written: %w", err))
	})
	defer func() {
		if lost := show.close(ctx, context.Background(), readerPatience); lost != nil && err == nil {
			err = withCode(exitSystem, nil) // close has reported it
		}
	}()
	var following sync.WaitGroup
	told := 0
	p, err := followPipeline(ctx, m, id, true, func(p *pb.Pipeline) error {
		for _, note := range p.GetNotes()[min(told, len(p.GetNotes())):] {
			show.say("note: " + note)
		}
		told = max(told, len(p.GetNotes()))
		for _, j := range p.GetJobs() {
			if build := j.GetBuild(); build != "" && !followed[build] {
				followed[build] = true
				out := show.text(termtext.Line(j.GetName()))
				following.Go(func() {
					defer func() { _ = out.Close() }() // the stream reports a failure
					_, err := followLog(ctx, m, build, true, out, io.Discard)
					if err != nil && ctx.Err() == nil {
						show.say(fmt.Sprintf("stepmux: the log of the build %s: %v", build, toldError(err)))
					}
				})
			}
		}
		return nil
	})
	following.Wait()
	if err != nil {
		if ctx.Err() != nil {
			show.say("stepmux: the pipeline goes on: stepmux pipelines " + id)
		}
		return err
	}
	report, err := remarkedReport(ctx, m, p, func(text string) { show.say("note: " + text) })
	if err == nil {
		err = files.write(report, show)
	}
	if p.GetError() != "" {
		show.say("stepmux: " + p.GetError())
	}
	if code := pipelineCode(p); code != 0 || err == nil {
		return withCode(code, err)
	}
	return err
}

// pipelineCode returns the exit code of a pipeline.
func pipelineCode(p *pb.Pipeline) int {
	switch {
	case p.GetPhase() == pb.Pipeline_blocked || p.GetStatus() == whole.Success:
		return 0
	case p.GetError() != "":
		return exitSystem
	case p.GetStatus() == whole.Cancelled:
		return cmp.Or(int(p.GetExitCode()), 1)
	default:
		return scriptCode(int(p.GetExitCode()))
	}
}

// pipelineReport returns a pipeline as its summary is made of.
func pipelineReport(p *pb.Pipeline) *whole.Report {
	r := &whole.Report{
		Name: p.GetName(), Status: cmp.Or(p.GetStatus(), p.GetPhase().String()), CriticalPath: p.GetCriticalPath(),
	}
	if p.GetEndedAt() != nil && p.GetStarted() != nil {
		r.Wall = p.GetEndedAt().AsTime().Sub(p.GetStarted().AsTime()).Seconds()
	}
	for _, j := range p.GetJobs() {
		one := whole.JobReport{
			Name: j.GetName(), Stage: j.GetStage(), Status: j.GetStatus(), Why: j.GetWhy(), Attempts: int(j.GetAttempts()),
		}
		if j.GetExitCode() != 0 {
			code := int(j.GetExitCode())
			one.ExitCode = &code
		}
		if j.GetStarted() != nil && j.GetFinished() != nil {
			one.Duration = max(j.GetFinished().AsTime().Sub(j.GetStarted().AsTime()).Seconds(), 0) // clocks differ
			r.Busy += one.Duration
		}
		r.Jobs = append(r.Jobs, one)
	}
	return r
}

func newPipelinesCommand() *cobra.Command {
	var f managerFlag
	var files wholeFlags
	var output string
	cmd := &cobra.Command{
		Use:   "pipelines [ID]",
		Short: "List the pipelines of a manager, or the jobs of one",
		Long: `List the pipelines of a stepmux manager, the latest first. With the ID of one, list its jobs: their status,
their build, and why they wait or did not run. The annotations and summaries of jobs that have ended are in the JSON,
and in the files of --report-sarif and --report-summary.

` + managerExitHelp,
		Example: `  stepmux pipelines
  stepmux pipelines p-0123456789ab
  stepmux logs p-0123456789ab/test`,
		Args: arguments("[ID]"),
	}
	fl := cmd.Flags()
	f.register(fl)
	files.registerRemarks(fl)
	outputFlag(fl, &output, "text, or json for an object per pipeline")
	limit := fl.Int("limit", 100, "list at most `N` pipelines, up to 10000")
	cmd.ValidArgsFunction = first(
		f.completeBy(pipelineIDs(func(*pb.Pipeline) bool { return true })), cobra.NoFileCompletions)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *limit < 1 || *limit > 10_000 {
			return fmt.Errorf("--limit %d: use 1 to 10000", *limit)
		}
		if err := files.checkRemarks(len(args)); err != nil {
			return err
		}
		return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
			if len(args) == 0 {
				list, err := m.ListPipelines(ctx, &pb.ListPipelinesRequest{Limit: int32(*limit)})
				if err != nil {
					return err
				}
				return writePipelines(cmd.OutOrStdout(), list.GetPipelines(), output == "json")
			}
			p, err := followPipeline(ctx, m, args[0], false, func(*pb.Pipeline) error { return nil })
			if err != nil {
				return err
			}
			return showPipeline(ctx, cmd, m, p, output == "json", &files)
		})
	}
	return cmd
}

func writePipelines(to io.Writer, list []*pb.Pipeline, asJSON bool) error {
	if asJSON {
		for _, p := range list {
			if err := writeJSON(to, p.JSON()); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PIPELINE\tSTATUS\tJOBS\tSUBMITTED\tTOOK\tFILE")
	for _, p := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", p.GetId(), statusOf(p), p.CountsText(),
			p.GetSubmitted().AsTime().Local().Format(time.DateTime), took(p.GetStarted(), p.GetEndedAt()),
			termtext.Line(cmp.Or(p.GetFile(), "-")))
	}
	return t.Flush()
}

// statusOf returns the status of a pipeline that has ended, or else its phase.
func statusOf(p *pb.Pipeline) string { return cmp.Or(p.GetStatus(), p.GetPhase().String()) }

// took returns the time since a start, up to an end if there is one.
func took(start, end *timestamppb.Timestamp) string {
	if start == nil {
		return "-"
	}
	until := time.Now()
	if end != nil {
		until = end.AsTime()
	}
	return max(until.Sub(start.AsTime()), 0).Round(time.Millisecond).String() // clocks differ
}

// writePipeline writes the jobs of a pipeline.
func writePipeline(to io.Writer, p *pb.Pipeline) error {
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tSTAGE\tSTATUS\tTOOK\tBUILD\tWHY")
	for _, j := range p.GetJobs() {
		state := j.GetStatus()
		if j.GetExitCode() != 0 {
			state = fmt.Sprintf("%s %d", state, j.GetExitCode())
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", termtext.Line(j.GetName()), termtext.Line(cmp.Or(j.GetStage(), "-")),
			termtext.Line(state), took(j.GetStarted(), j.GetFinished()), cmp.Or(j.GetBuild(), "-"),
			termtext.Line(cmp.Or(j.GetWhy(), "-")))
	}
	title := ""
	if p.GetName() != "" {
		title = fmt.Sprintf(" %.160q", p.GetName())
	}
	fmt.Fprintf(t, "pipeline%s: %s, %s\n", termtext.Line(title), statusOf(p), plural.Count(len(p.GetJobs()), "job"))
	for _, note := range p.GetNotes() {
		fmt.Fprintf(t, "note: %s\n", termtext.Line(note))
	}
	if p.GetError() != "" {
		fmt.Fprintf(t, "error: %s\n", termtext.Line(p.GetError()))
	}
	return t.Flush()
}

// splitJob splits PIPELINE/JOB. It returns ok false for the ID of a build.
func splitJob(text string) (id, job string, ok bool) {
	id, job, ok = strings.Cut(text, "/")
	return id, job, ok && job != ""
}

// buildNamed returns the ID of a build: text itself, or the latest build of PIPELINE/JOB. With follow it waits for one.
func buildNamed(ctx context.Context, m pb.ManagerClient, text string, follow bool) (string, error) {
	id, name, ok := splitJob(text)
	if !ok {
		return text, nil
	}
	var found *pb.PipelineJob
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	enough := errors.New("the build is known")
	_, err := followPipeline(ctx, m, id, follow, func(p *pb.Pipeline) error {
		for _, j := range p.GetJobs() {
			if j.GetName() == name {
				found = j
			}
		}
		if found.GetBuild() != "" {
			return enough
		}
		return nil
	})
	switch {
	case found.GetBuild() != "":
		return found.GetBuild(), nil
	case err != nil:
		return "", err
	case found == nil:
		return "", fmt.Errorf("the pipeline %.80q has no job %.160q; stepmux pipelines ID lists them", id, name)
	}
	return "", fmt.Errorf("the job %.160q has no build: its status is %s", name, found.GetStatus())
}

func newPlayCommand() *cobra.Command {
	var f managerFlag
	cmd := &cobra.Command{
		Use:   "play PIPELINE/JOB...",
		Short: "Start manual jobs of a manager's pipelines",
		Long: `Start manual jobs of pipelines of a stepmux manager. A pipeline that is blocked by such a job goes on. JOB may
be the name of a job with parallel builds: all of them start.

` + managerExitHelp,
		Example: `  stepmux play p-0123456789ab/deploy`,
		Args:    arguments("PIPELINE/JOB..."),
	}
	f.register(cmd.Flags())
	cmd.ValidArgsFunction = f.completeBy(manualJobs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			if _, _, ok := splitJob(arg); !ok {
				return fmt.Errorf("%.160q: write PIPELINE/JOB", arg)
			}
		}
		return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
			for _, arg := range args {
				id, job, _ := splitJob(arg)
				if _, err := m.PlayPipeline(ctx, &pb.PlayPipelineRequest{Id: id, Job: job}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return cmd
}

func newRetryCommand() *cobra.Command {
	var f managerFlag
	var wait bool
	cmd := &cobra.Command{
		Use:   "retry [flags] PIPELINE",
		Short: "Run what failed in a manager's pipeline again",
		Long: `Run the jobs of a pipeline of a stepmux manager that failed, were cancelled or did not run again, with the
artifacts of the jobs that succeeded.

` + managerExitHelp,
		Args: arguments("PIPELINE"),
	}
	f.register(cmd.Flags())
	cmd.Flags().BoolVar(&wait, "wait", false, "show the output of the jobs, and exit with the pipeline's exit code")
	cmd.ValidArgsFunction = first(f.completeBy(pipelineIDs(isAtRest)), cobra.NoFileCompletions)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
			before := map[string]bool{}
			_, err := followPipeline(ctx, m, args[0], false, func(p *pb.Pipeline) error {
				for _, j := range p.GetJobs() {
					before[j.GetBuild()] = true
				}
				return nil
			})
			if err == nil {
				_, err = m.RetryPipeline(ctx, &pb.RetryPipelineRequest{Id: args[0]})
			}
			if err != nil || !wait {
				return err
			}
			return awaitPipeline(ctx, cmd, m, args[0], before, &wholeFlags{})
		})
	}
	return cmd
}

// manualJobs lists the manual jobs of pipelines that are blocked or run, as PIPELINE/JOB.
func manualJobs(ctx context.Context, m pb.ManagerClient) (jobs []string, err error) {
	list, err := m.ListPipelines(ctx, &pb.ListPipelinesRequest{Limit: maxCompletions})
	if err != nil {
		return nil, err
	}
	for _, p := range list.GetPipelines() {
		if p.GetPhase() == pb.Pipeline_ended {
			continue
		}
		_, err = followPipeline(ctx, m, p.GetId(), false, func(p *pb.Pipeline) error {
			for _, j := range p.GetJobs() {
				if j.GetStatus() == "manual" {
					jobs = append(jobs, p.GetId()+"/"+termtext.Line(j.GetName())+"\t"+termtext.Line(p.GetFile()))
				}
			}
			return nil
		})
	}
	return jobs, err
}

// pipelineIDs lists the IDs of a manager's pipelines for which wanted returns true.
func pipelineIDs(wanted func(*pb.Pipeline) bool) lister {
	return func(ctx context.Context, m pb.ManagerClient) (ids []string, err error) {
		list, err := m.ListPipelines(ctx, &pb.ListPipelinesRequest{Limit: maxCompletions})
		for _, p := range list.GetPipelines() {
			if wanted(p) {
				ids = append(ids, p.GetId()+"\t"+statusOf(p)+" "+termtext.Line(p.GetFile()))
			}
		}
		return ids, err
	}
}
