package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/standalone/githubpipeline"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/managed"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// registerSubmit registers the flags that submit has too.
func (f *wholeFlags) registerSubmit(fl *pflag.FlagSet) {
	fl.IntVar(&f.jobs, "jobs", 0, "queue or run at most so many jobs of a pipeline at once (default: twice the slots)")
	fl.Lookup("jobs").DefValue = ""
	f.registerChoice(fl)
	f.event.register(fl)
	f.registerRemarks(fl)
}

// ofOneBuild are flags of submit that have no meaning for a whole pipeline.
var ofOneBuild = []string{"artifacts", "trace", "output-file", "provenance", "sign-key"}

// isWhole reports whether the flags ask for the whole pipeline of a FILE.
func (f *submitFlags) isWhole(cmd *cobra.Command, file string) (bool, error) {
	format, err := standalone.ParseFormat(f.format, file)
	if err == nil {
		err = checkFormat(cmd, standalone.Source{Format: format})
	}
	if err != nil {
		return false, err
	}
	ofWhole := changed(cmd, slices.Concat(wholeNames, []string{"event", "changed-since", "in-image"}))
	ofBuild := changed(cmd, ofOneBuild)
	isPipeline := isPipeline(standalone.Source{Format: format})
	switch {
	case f.whole.checkDepth() != nil:
		return false, f.whole.checkDepth()
	case f.whole.jobs < 0:
		return false, errors.New("--jobs: use a number above 0")
	case f.whole.needs && f.jobName == "":
		return false, errors.New("--needs: name the job with --job-name")
	case f.jobName != "" && !f.whole.needs && ofWhole != "":
		return false, fmt.Errorf("--%s is for a whole pipeline; with --job-name it needs --needs", ofWhole)
	case !isPipeline && f.inImage:
		return false, errors.New("--in-image is for a .gitlab-ci.yml or a workflow: a job in steps has the key image")
	case !isPipeline || f.jobName != "" && !f.whole.needs:
		return false, nil
	case ofBuild != "":
		return false, fmt.Errorf("--%s is for one job: name it with --job-name", ofBuild)
	case f.whole.sarif+f.whole.summaries != "" && !f.wait:
		return false, errors.New("--report-sarif and --report-summary need --wait, as they are written when the pipeline " +
			"has ended; else give them to 'stepmux pipelines ID' later")
	}
	return true, f.whole.checkReports([]flagFile{{"the pipeline", file}})
}

// runWhole queues the pipeline of a FILE, or lists its jobs.
func (f *submitFlags) runWhole(cmd *cobra.Command, reader *jobReader, file string) error {
	ownProject := f.project != ""
	if !ownProject {
		f.project = "."
	}
	reader.project, reader.inImage = f.project, f.inImage
	req, p, err := f.pipelineRequest(cmd, reader, file)
	if err != nil {
		return err
	}
	if f.whole.list {
		tellNotes(cmd.ErrOrStderr(), p, nil) // pipelineRequest has told the others
		return listJobs(cmd.OutOrStdout(), p, false)
	}
	return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
		project, err := f.packWhole(ctx, p, cmd.ErrOrStderr())
		if err != nil && !ownProject {
			reader.tell([]string{fmt.Sprintf("the jobs have no files of the project: %v", err)})
			project, err = nil, nil
		}
		if err != nil {
			return err
		}
		defer project.Close()
		if project != nil {
			req.Project, req.ProjectBytes = project.Digest, project.Size
		}
		req.Key = rand.Text()
		var id string
		err = sendAgain(ctx, m, project, "the pipeline may be queued: stepmux pipelines lists it then", func() error {
			resp, err := m.SubmitPipeline(ctx, req)
			id = resp.GetId()
			return err
		})
		if err != nil {
			return err
		}
		if !f.wait {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
			return err
		}
		fmt.Fprintln(cmd.ErrOrStderr(), id)
		return awaitPipeline(ctx, cmd, m, id, map[string]bool{}, &f.whole)
	})
}

// packWhole packs the project of p, with a repository for its jobs.
func (f *submitFlags) packWhole(ctx context.Context, p *whole.Pipeline, messages io.Writer) (_ *packed, err error) {
	temp, err := makeTempDir(ctx, "git-")
	if err != nil {
		return nil, systemError(err)
	}
	defer func() { err = errors.Join(err, temp.remove()) }()
	dir, err := filepath.Abs(f.project)
	if err != nil {
		return nil, err
	}
	git := f.whole.gitFor(ctx, dir, temp.path, p, func(text string) {
		fmt.Fprintf(messages, "note: %s\n", termtext.Line(text))
	})
	return f.pack(ctx, git, messages)
}

// pipelineRequest reads a FILE, and returns the request for its pipeline.
func (f *submitFlags) pipelineRequest(
	cmd *cobra.Command, reader *jobReader, file string,
) (*pb.SubmitPipelineRequest, *whole.Pipeline, error) {
	src, err := reader.read(file)
	if err != nil {
		return nil, nil, err
	}
	dir, _ := filepath.Split(src.Name)
	src.Name = strings.TrimPrefix(src.Name, dir)
	if err := reader.ofProject(&src); err != nil {
		return nil, nil, err
	}
	if err := f.whole.event.applyTo(cmd, &src); err != nil {
		return nil, nil, err
	}
	if f.whole.event.event == "" && src.Format == standalone.GitLabCI {
		push := gitlabci.Variable{Name: "CI_PIPELINE_SOURCE", Value: "push"}
		src.Predefined = append(slices.Clip(src.Predefined), push)
	}
	source, p, notices, err := managed.Source(src)
	if err != nil {
		return nil, nil, err
	}
	c := f.whole.choice
	choice := &pb.PipelineChoice{
		Job: f.jobName, Stages: c.Stages, Skip: c.Skip, Manual: c.Manual, WaitDelayed: c.WaitDelayed,
		SkipTriggers: c.SkipTriggers,
	}
	if err := managed.Choose(p, src.Name, choice); err != nil && !f.whole.list {
		return nil, nil, err
	}
	reader.tell(notices)
	if err := reader.warn(warningsOf(p)); err != nil {
		return nil, nil, err
	}
	req := &pb.SubmitPipelineRequest{
		Source: source, Choice: choice, Options: f.options().With(&stepmuxv1.Job{Variables: jobVars(src.Vars)}),
		Labels: f.labels, RetryLost: f.retry == "lost", Slots: int32(min(f.whole.jobs, 1<<20)),
		Repository: repositoryOf(cmd.Context(), src), InImage: reader.inImage,
		Remarks: f.whole.sarif+f.whole.summaries != "",
	}
	if src.Format == standalone.GitHub {
		req.Services = &pb.BuildServices{Scopes: githubpipeline.CacheScopes(src)}
	}
	if _, err := proto.Marshal(req); err != nil { // as of text that is not UTF-8: gRPC would call that its own failure
		return nil, nil, fmt.Errorf("%s: it cannot be sent to the manager: %w", file, err)
	}
	return req, p, nil
}

// repositoryOf returns a name of the project of src, by which its pipelines from all machines share resource groups.
func repositoryOf(ctx context.Context, src standalone.Source) string {
	for _, v := range src.Vars {
		if v.Key == "CI_PROJECT_PATH" && v.Value != "" {
			return v.Value
		}
	}
	for _, v := range src.Predefined {
		if v.Name == "CI_PROJECT_PATH" {
			return v.Value
		}
	}
	dir := checkout.Repository(ctx, src.WorkDir)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	return strings.ToValidUTF8(filepath.Base(strings.TrimSuffix(dir, "/.git")), "?")
}
