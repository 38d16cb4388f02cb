package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/remote/commands/doors"
)

// eventFlags say for which event a .gitlab-ci.yml or a workflow runs.
type eventFlags struct {
	event string
	since string
}

// tagEvent is the event of a tag.
const tagEvent = "tag"

// The events. Those of changes have files that have changed; rules:changes holds for all others.
var (
	events        = []string{"push", "merge_request", tagEvent, "schedule", "web", "api", "trigger", "pipeline"}
	changesEvents = []string{"", "push", "merge_request"}
)

func (f *eventFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.event, "event", "", "the `EVENT` for which a pipeline runs: of a .gitlab-ci.yml "+either(events)+
		"; of a workflow its name, or NAME=FILE with its payload in JSON (default: push, or else one that starts it)")
	fl.StringVar(&f.since, "changed-since", "", "for rules:changes, compare with the commit where the branch left this "+
		"`REF`, a branch or a commit (default: the commit before; for merge_request: the default branch)")
	grouped(fl, pipelineGroup)
}

// applyTo applies the flags to src, a .gitlab-ci.yml or a workflow for VMs.
func (f *eventFlags) applyTo(cmd *cobra.Command, src *standalone.Source) error {
	if src.Format == standalone.GitHub {
		src.Fetch = fetchWorkflow(cmd.Context(), doors.ActionDefaults(), "")
		return workflowEvent(src, f.event, cmd.InOrStdin())
	}
	return f.apply(cmd.Context(), src, src.WorkDir)
}

// apply sets the predefined variables and the changes of src, a .gitlab-ci.yml in dir.
func (f *eventFlags) apply(ctx context.Context, src *standalone.Source, dir string) error {
	vars := variableSet{&src.Predefined}
	base := ""
	if f.event != "" && !slices.Contains(events, f.event) {
		return fmt.Errorf("--event %.40q: use %s", f.event, either(events))
	}
	switch f.event {
	case "":
	case tagEvent:
		vars.set("CI_PIPELINE_SOURCE", "push")
		tag := checkout.Tag(ctx, dir)
		if tag == "" {
			return errors.New("--event tag: the commit that is checked out has no tag; make one, or leave the flag out and " +
				"give the variable by --var CI_COMMIT_TAG=NAME")
		}
		vars.remove("CI_COMMIT_BRANCH")
		vars.set("CI_COMMIT_TAG", tag)
		vars.set("CI_COMMIT_REF_NAME", tag)
		vars.set("CI_COMMIT_REF_SLUG", checkout.Slug(tag))
	case "merge_request":
		target := vars.get("CI_DEFAULT_BRANCH")
		setMergeRequest(vars, target)
		base, _ = checkout.Commit(ctx, dir, "origin/"+target) // without it, the changes are those of the last commit
	default:
		vars.set("CI_PIPELINE_SOURCE", f.event)
	}
	if f.since != "" {
		var err error
		if base, err = checkout.Commit(ctx, dir, f.since); err != nil {
			return fmt.Errorf("--changed-since: %w", err)
		}
	}
	changed := src.Changed
	src.Changed = func(compareTo string) ([]string, error) {
		if compareTo == "" && base == "" && !slices.Contains(changesEvents, f.event) {
			return nil, nil
		}
		return changed(cmp.Or(compareTo, base))
	}
	return nil
}

// setMergeRequest sets the variables of a merge request from the branch that is checked out into target.
func setMergeRequest(vars variableSet, target string) {
	branch := vars.get("CI_COMMIT_REF_NAME")
	vars.remove("CI_COMMIT_BRANCH")
	vars.set("CI_PIPELINE_SOURCE", "merge_request_event")
	vars.set("CI_MERGE_REQUEST_EVENT_TYPE", "detached")
	vars.set("CI_MERGE_REQUEST_ID", "1")
	vars.set("CI_MERGE_REQUEST_IID", "1")
	vars.set("CI_MERGE_REQUEST_REF_PATH", "refs/merge-requests/1/head")
	vars.set("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", branch)
	vars.set("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", target)
}

// variableSet is a list of variables that has each name once.
type variableSet struct{ list *[]gitlabci.Variable }

func (s variableSet) get(name string) string {
	i := slices.IndexFunc(*s.list, func(v gitlabci.Variable) bool { return v.Name == name })
	if i < 0 {
		return ""
	}
	return (*s.list)[i].Value
}

func (s variableSet) remove(name string) {
	*s.list = slices.DeleteFunc(slices.Clone(*s.list), func(v gitlabci.Variable) bool { return v.Name == name })
}

// set sets a variable. An empty value is that of a variable that is not known: it is left out.
func (s variableSet) set(name, value string) {
	s.remove(name)
	if strings.TrimSpace(value) != "" {
		*s.list = append(*s.list, gitlabci.Variable{Name: name, Value: value})
	}
}
