package gitlabci

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// Trigger is the pipeline that a job starts.
type Trigger struct {
	// Child is the pipeline of files of this project. It is nil if the pipeline is another one.
	Child *Pipeline
	// Made says that the pipeline is of files that other jobs make; see [Pipeline.Made].
	Made bool
	// Other describes a pipeline that cannot run here: one of another project, or of files that are not here.
	Other string
	// Depend says that the job has the outcome of the pipeline. Without it, the job succeeds once that has begun.
	Depend bool
}

// maxChildren bounds the depth of child pipelines, as GitLab does.
const maxChildren = 2

// triggerKeys are the keys of trigger.
var triggerKeys = []string{"branch", "forward", "include", "inputs", "project", "strategy"}

// readTrigger reads the pipeline that the job starts.
func (d *draft) readTrigger(planned *Planned, job *Job) {
	n := d.key("trigger")
	if n == nil {
		return
	}
	t := d.file.tree
	trigger := &Trigger{}
	planned.Trigger = trigger
	if n.Kind != yaml.MappingNode {
		trigger.Other = fmt.Sprintf("project %.160q", n.Value)
		return
	}
	t.checkKeys(n, "trigger", triggerKeys, "")
	if strategy := find(n, "strategy"); !isNull(strategy) {
		trigger.Depend = strategy.Value == "depend" || strategy.Value == "mirror"
		if !trigger.Depend {
			t.failf(strategy, "strategy of trigger is depend or mirror")
		}
	}
	include := find(n, "include")
	switch {
	case !isNull(find(n, "project")):
		trigger.Other = fmt.Sprintf("project %.160q", find(n, "project").Value)
	case isNull(include):
		t.failf(n, "trigger needs project, or include with a file of this project")
	case slices.ContainsFunc(itemsOf(include), func(item *yaml.Node) bool { return find(item, "artifact") != nil }):
		trigger.Made = true
		for _, item := range itemsOf(include) {
			if made := find(item, "artifact"); made != nil && isNull(find(item, "job")) {
				t.failf(item, "include: artifact needs job, the name of the job that makes the file")
			}
		}
	case d.file.cfg.Other == nil && !slices.ContainsFunc(itemsOf(include), func(item *yaml.Node) bool {
		return !isElsewhere(item)
	}):
		trigger.Other = "its files are elsewhere; save them in a directory, and name it by --includes"
	default:
		trigger.Child = d.child(n, include, job, nil)
	}
}

// isElsewhere reports whether an entry of include names files that are not of this project.
func isElsewhere(entry *yaml.Node) bool {
	if entry.Kind == yaml.ScalarNode {
		return strings.Contains(entry.Value, "://")
	}
	return slices.ContainsFunc(kinds, func(kind string) bool { return find(entry, kind) != nil })
}

// ReadArtifact reads a file of the artifacts of a job.
type ReadArtifact func(job, path string) ([]byte, error)

// Made returns the pipeline of files that other jobs have made, for a job whose Trigger says so. values are as for Job.
func (p *Pipeline) Made(i int, values []Variable, artifact ReadArtifact) (*Pipeline, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, d := p.file, *p.Jobs[i].draft
	f.tree.Err = nil
	f.tree.keep(f.warned)
	defer func(cost int) { f.tree.Cost = cost }(f.tree.Cost)
	d.notices, d.values = nil, values
	job, n := d.open(d.share), d.key("trigger")
	child := d.child(n, find(n, "include"), job, artifact)
	return child, f.tree.Err
}

// child returns the pipeline of the files in include. Its jobs have the variables of the file and of the job, which
// override those of the files, unless forward says otherwise.
func (d *draft) child(trigger, include *yaml.Node, job *Job, artifact ReadArtifact) *Pipeline {
	f, t := d.file, d.file.tree
	if f.cfg.depth >= maxChildren {
		t.failf(trigger, "child pipelines start each other more than %d deep", maxChildren)
		return nil
	}
	cfg := f.cfg
	cfg.depth++
	cfg.artifact = artifact
	cfg.Inputs, cfg.Matrix = nil, nil
	cfg.Predefined = append(slices.DeleteFunc(slices.Clone(cfg.Predefined), func(v Variable) bool {
		return v.Name == "CI_PIPELINE_SOURCE"
	}), Variable{"CI_PIPELINE_SOURCE", "parent_pipeline"})
	if d.yes("forward: yaml_variables", find(find(trigger, "forward"), "yaml_variables"), true) {
		cfg.Given = slices.Clone(cfg.Given)
		for _, name := range d.ownVariables() {
			if !slices.ContainsFunc(cfg.Given, func(v Variable) bool { return v.Name == name }) {
				cfg.Given = append(cfg.Given, Variable{name, valueOf(job.Variables, name)})
			}
		}
	}
	text, err := yaml.Marshal(t.made(trigger, yaml.MappingNode, t.text(trigger, "include"), include))
	if err != nil {
		t.failf(include, "trigger: read include: %v", err)
		return nil
	}
	// The name is not that of the file: a file may start itself, up to maxChildren.
	child, err := Read(fmt.Sprintf("%s (trigger of %.64q)", t.origin(trigger).Name, d.name), text, cfg)
	var p *Pipeline
	if err == nil {
		p, err = child.Pipeline()
	}
	if err != nil {
		t.failf(include, "the child pipeline of the job%s: %v", lang.QuoteName(d.name), err)
		return nil
	}
	return p
}

// ownVariables returns the names of the variables of the file and of the job that have no place in the pipeline itself.
func (d *draft) ownVariables() (names []string) {
	list := d.global(nil, d.file.globals["variables"])
	list = d.file.variables(list, find(d.node, "variables"))
	for _, v := range append(d.file.variables(list, d.ruling.variables), d.share.vars...) {
		if !slices.Contains(names, v.name) && !strings.Contains(v.value, projectDir) {
			names = append(names, v.name)
		}
	}
	return names
}
