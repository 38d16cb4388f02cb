package gitlabpipeline

import (
	"cmp"
	"fmt"
	"maps"
	"os"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
)

// Read reads the pipeline of src, a .gitlab-ci.yml. JobName and Matrix of src have no effect. An error is about the
// text, or about the values that the caller has added.
func Read(src standalone.Source) (*whole.Pipeline, error) {
	p, err := standalone.ReadPipeline(src)
	if err != nil {
		return nil, err
	}
	to := convert(p)
	to.GitDepth = cmp.Or(p.GitDepth, gitDepth)
	if ref, commit := p.Variable("CI_COMMIT_REF_NAME"), p.Variable("CI_COMMIT_SHA"); ref != "" && commit != "" {
		to.Series, to.Version = p.Variable("CI_PIPELINE_SOURCE")+" "+ref, commit
		to.Newer = newer[p.OnNewCommit]
	}
	return to, nil
}

// gitDepth is the depth of GitLab's clones, unless the text or the project says otherwise.
const gitDepth = "20"

// newer has the values of auto_cancel: on_new_commit.
var newer = map[string]whole.Newer{
	"conservative": whole.EndUnlessStarted, "interruptible": whole.EndInterruptible, "none": whole.EndNothing,
}

// convert returns p and its child pipelines in the form of package whole.
func convert(p *standalone.Pipeline) *whole.Pipeline {
	to := &whole.Pipeline{Name: p.Name, Graph: p.Graph, Out: p.Out}
	for i, j := range p.Jobs {
		job := &whole.Job{
			Name: j.Name, Base: j.Base, Stage: j.Stage, When: j.When, Timeout: j.Timeout, Lock: j.ResourceGroup,
			Notices: j.Notices, Interruptible: j.Interruptible,
			Warnings: standalone.Problems(j.Warnings),
			Prepare:  func(before []whole.Before) (*carry.Prepared, error) { return prepare(p, i, before) },
		}
		if t := j.Trigger; t != nil {
			job.Trigger = &whole.Trigger{Other: t.Other, Depend: t.Depend}
			if child := p.Child(i); child != nil {
				job.Trigger.Child = convert(child)
			}
			if t.Made {
				job.Trigger.Read = func(before []whole.Before, artifact whole.ReadArtifact) (*whole.Pipeline, error) {
					child, err := p.MadeChild(i, valuesOf(before), gitlabci.ReadArtifact(artifact))
					if err != nil {
						return nil, err
					}
					return convert(child), nil
				}
			}
		}
		to.Jobs = append(to.Jobs, job)
	}
	for _, l := range p.Left {
		to.Left = append(to.Left, whole.Left{Name: l.Name, Base: l.Base, Stage: l.Stage, Why: l.Why})
	}
	return to
}

// valuesOf returns the variables that jobs have reported. Of two of one name, that of the later job counts.
func valuesOf(before []whole.Before) map[string]string {
	values := map[string]string{}
	for _, b := range before {
		maps.Copy(values, b.Values)
	}
	return values
}

// prepare compiles a job.
func prepare(p *standalone.Pipeline, i int, before []whole.Before) (*carry.Prepared, error) {
	job, compiled, err := p.Compile(i, valuesOf(before))
	if err != nil {
		return nil, err
	}
	var caches []carry.Cache
	for _, c := range compiled.Caches {
		caches = append(caches, carry.Cache{
			Key: c.Key, Files: c.Files, Fallback: c.Fallback, Paths: c.Paths, Untracked: c.Untracked,
			When: carry.When(c.When), Pull: c.Pull, Push: c.Push,
		})
	}
	a := compiled.Artifacts
	prepared := &carry.Prepared{
		Job: job, Caches: caches, Tests: a.JUnit, ValueFiles: a.Dotenv,
		RunsOn: carry.RunsOn{Key: "tags", Labels: p.Jobs[i].Tags},
		Artifacts: carry.Artifacts{
			Paths: a.Paths, Exclude: a.Exclude, Untracked: a.Untracked, When: carry.When(a.When),
		},
	}
	if len(a.Dotenv) > 0 {
		prepared.Values = func(dir string, _ *standalone.Report) (map[string]string, error) {
			return reported(dir, a.Dotenv)
		}
	}
	return prepared, nil
}

// maxReport bounds the bytes that are read of a dotenv report: more than it may have.
const maxReport = 64 << 10

// reported returns the variables in dotenv reports of a job. The job may have made anything of such a file, such as a
// link that leads out. One that is not valid counts as missing.
func reported(dir string, names []string) (map[string]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	all := map[string]string{}
	for _, name := range names {
		data, readErr := boundedfile.ReadBy(root.OpenFile, name, maxReport)
		var values []gitlabci.Variable
		if readErr == nil {
			values, readErr = gitlabci.ParseDotenv(data)
		}
		if readErr != nil && err == nil {
			err = fmt.Errorf("dotenv %.160q: %w", name, readErr)
		}
		for _, v := range values {
			all[v.Name] = v.Value
		}
	}
	return all, err
}
