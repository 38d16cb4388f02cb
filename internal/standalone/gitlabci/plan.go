package gitlabci

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Pipeline is the pipeline of a file: the jobs that its rules put into it, and their graph. It is safe for concurrent
// use.
type Pipeline struct {
	// Name is workflow:name, with its variables replaced.
	Name string
	// Jobs are the jobs, by stage and then as in the file. Each parallel build is one.
	Jobs []*Planned
	// Graph has a node for each of Jobs, in the same order. A manual job is a Manual node, a delayed one has its delay.
	Graph pipeline.Graph
	// Left are the jobs that are not in the pipeline.
	Left []Left
	// Out names the key by which there is no pipeline: then it has no jobs. Otherwise it is empty.
	Out string
	// OnNewCommit is the part of this pipeline that a newer one ends: a value of on_new_commit.
	OnNewCommit string
	// GitDepth is the value of the variable GIT_DEPTH that all jobs have. It may be empty.
	GitDepth string

	endsOnFailure bool

	mu   sync.Mutex // guards the following, while a job is compiled
	file *File
}

// Planned is a job of a pipeline.
type Planned struct {
	// Name is the name of the job or of one of its parallel builds, Base that of the job, and Stage that of its stage.
	Name, Base, Stage string
	// When is on_success, on_failure, always, manual or delayed.
	When string
	// Timeout bounds the job. Zero if the job has none.
	Timeout time.Duration
	// Interruptible says that a newer pipeline may end the job.
	Interruptible bool
	// ResourceGroup is the name of the job's resource group. Jobs of one group run one after another.
	ResourceGroup string
	// Tags are the labels of the machine on which the job wants to run.
	Tags []string
	// Trigger is the pipeline that the job starts. It is nil for a job with a script.
	Trigger *Trigger
	// Notices are about parts of the job that have no effect. Warnings are those of [Job].
	Notices  []string
	Warnings []*lang.Error

	draft *draft
}

// Left is a job that a pipeline does not have.
type Left struct {
	Name, Base, Stage string
	// Why names the key that leaves the job out.
	Why string
}

// Pipeline returns the pipeline of the file with the variables in the Config. It compiles each job once, so that
// mistakes are found before a job runs. Errors of the file have the type [*lang.Error].
func (f *File) Pipeline() (*Pipeline, error) {
	f.tree.Err = nil
	for _, input := range f.missing {
		f.tree.failf(input, "the input%s has no value and no default; give it one by --input", lang.QuoteName(input.Value))
	}
	p := &Pipeline{file: f}
	if f.cfg.depth == 0 {
		f.cfg.planned = new(atomic.Int64)
	}
	if p.Out = f.outByWorkflow(p); p.Out != "" || f.tree.Err != nil {
		return p, f.tree.Err
	}
	stages, jobs := f.stages(), f.Jobs()
	for _, name := range jobs {
		added, left := len(p.Jobs), len(p.Left)
		err := p.addAll(name, stages, jobs)
		if err != nil && !slices.Contains(f.cfg.Skip, name) {
			return nil, err
		}
		if err != nil {
			f.tree.Err = nil
			p.Jobs, p.Graph.Nodes = p.Jobs[:added], p.Graph.Nodes[:added]
			p.Left = append(p.Left[:left], Left{name, name, "", NotChosen})
		}
	}
	ends := []string{stages[0], stages[len(stages)-1]} // .pre and .post
	if !slices.ContainsFunc(p.Jobs, func(j *Planned) bool { return !slices.Contains(ends, j.Stage) }) {
		for _, j := range p.Jobs {
			p.Left = append(p.Left, Left{j.Name, j.Base, j.Stage, "the only jobs are in .pre and .post"})
		}
		p.Jobs = nil
	}
	return p, p.link(stages)
}

// NotChosen is why a job is left out that the caller skips.
const NotChosen = "not chosen"

// addAll adds all builds of a job.
func (p *Pipeline) addAll(name string, stages, jobs []string) error {
	f := p.file
	d := f.find(name)
	d.check()
	d.checkPlace(stages, jobs)
	for _, s := range d.shares() {
		if f.tree.Err != nil {
			return f.tree.Err
		}
		one := *d
		one.planned = true
		if err := p.add(&one, s, stages); err != nil {
			return err
		}
	}
	return f.tree.Err
}

// outByWorkflow returns the key of workflow by which there is no pipeline, if there is one, and sets its name.
func (f *File) outByWorkflow(p *Pipeline) string {
	list := f.literal(nil, f.cfg.Predefined)
	if n := f.globals["variables"]; !isNull(n) {
		list = f.variables(list, f.resolve(n, nil))
	}
	e := f.expander(f.literal(list, f.cfg.Given))
	workflow := f.globals["workflow"]
	cancel := []*yaml.Node{find(workflow, "auto_cancel")}
	if n := find(workflow, "rules"); !isNull(n) {
		rule := f.matched(f.resolve(n, nil), workflowRuleKeys, e)
		if rule == nil {
			return "workflow:rules"
		}
		e = f.expander(f.literal(f.variables(list, find(rule, "variables")), f.cfg.Given))
		cancel = append(cancel, find(rule, "auto_cancel"))
	}
	p.GitDepth, _ = e.lookUp("GIT_DEPTH")
	p.readAutoCancel(cancel)
	if n := find(workflow, "name"); !isNull(n) {
		p.Name = e.expand(variable{at: n, value: n.Value})
	}
	return ""
}

// autoCancelKeys are the keys of auto_cancel.
var autoCancelKeys = []string{"on_new_commit", "on_job_failure"}

// readAutoCancel reads auto_cancel of workflow and of its rule. The later ones in the list take precedence.
func (p *Pipeline) readAutoCancel(list []*yaml.Node) {
	f := p.file
	p.OnNewCommit = "conservative"
	onFailure := "none"
	for _, n := range list {
		if isNull(n) {
			continue
		}
		n = f.resolve(n, nil)
		if n.Kind != yaml.MappingNode {
			f.tree.failf(n, "auto_cancel is a mapping with on_new_commit or on_job_failure, not %s", describe(n))
			return
		}
		f.tree.checkKeys(n, "auto_cancel", autoCancelKeys, "")
		f.choice(&p.OnNewCommit, find(n, "on_new_commit"), "on_new_commit", "conservative", "interruptible", "none")
		f.choice(&onFailure, find(n, "on_job_failure"), "on_job_failure", "none", "all")
	}
	p.endsOnFailure = onFailure == "all"
}

// choice sets to to the value of n, one of the words, unless n has no value.
func (f *File) choice(to *string, n *yaml.Node, key string, words ...string) {
	switch {
	case isNull(n):
	case !slices.Contains(words, n.Value):
		f.tree.failf(n, "%s is one of %s", key, strings.Join(words, ", "))
	default:
		*to = n.Value
	}
}

// add adds one build of a job to the pipeline, or to the jobs that are not in it.
func (p *Pipeline) add(d *draft, s share, stages []string) error {
	t, cost := p.file.tree, p.file.tree.Cost
	job := d.open(s)
	stage := defaultStage
	if n := find(d.node, "stage"); !isNull(n) {
		stage = n.Value
	}
	if d.ruling.out != "" {
		p.Left = append(p.Left, Left{s.name, d.name, stage, d.ruling.out})
		return t.Err
	}
	if p.file.cfg.planned.Add(1) > pipeline.MaxNodes {
		return t.Errorf(d.at, "the pipeline and its children have more than %d jobs; split the file", pipeline.MaxNodes)
	}
	planned := &Planned{Name: s.name, Base: d.name, Stage: stage, draft: d}
	node := pipeline.Node{
		Name: s.name, Place: t.place(d.at), Stage: max(slices.Index(stages, stage), 0),
		Free: findKey(d.node, "trigger") != nil,
	}
	d.readRun(planned, &node, job)
	d.readTrigger(planned, job)
	if _, err := p.file.finish(d, job); err != nil {
		return err
	}
	planned.Notices, planned.Warnings = job.Notices, job.Warnings
	d.notices = nil
	t.Cost = cost // the compiled job is not kept
	p.Jobs, p.Graph.Nodes = append(p.Jobs, planned), append(p.Graph.Nodes, node)
	return t.Err
}

// place returns the place of a node, as errors begin.
func (t *tree) place(n *yaml.Node) string {
	text := t.Errorf(n, "").Error()
	return strings.TrimSuffix(text, ": ")
}

// Job compiles a job of the pipeline. values are variables that earlier jobs have reported; they override those of the
// file.
func (p *Pipeline) Job(i int, values []Variable) (*Job, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, d := p.file, *p.Jobs[i].draft
	f.tree.Err = nil
	f.tree.keep(f.warned)
	defer func(cost int) { f.tree.Cost = cost }(f.tree.Cost)
	d.notices, d.values = nil, values
	return f.compile(&d, d.share)
}

// link sorts the jobs by stage, and adds what each needs to the graph.
func (p *Pipeline) link(stages []string) error {
	order := make([]int, len(p.Jobs))
	for i := range order {
		order[i] = i
	}
	nodes := p.Graph.Nodes
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(nodes[a].Stage, nodes[b].Stage) })
	l := linker{Pipeline: p, stages: stages, builds: map[string][]int{}}
	jobs := p.Jobs
	p.Jobs, p.Graph = nil, pipeline.Graph{Stages: stages}
	for i, from := range order {
		p.Jobs, p.Graph.Nodes = append(p.Jobs, jobs[from]), append(p.Graph.Nodes, nodes[from])
		name, base := jobs[from].Name, jobs[from].Base
		l.builds[name] = append(l.builds[name], i)
		if base != name {
			l.builds[base] = append(l.builds[base], i)
		}
		if group := jobs[from].ResourceGroup; group != "" {
			p.Graph.Groups = append(p.Graph.Groups, pipeline.Group{Name: group, Max: 1})
		}
	}
	if p.endsOnFailure {
		p.Graph.Groups = append(p.Graph.Groups, pipeline.Group{Name: allJobs, FailFast: true})
		for i := range p.Graph.Nodes {
			p.Graph.Nodes[i].Groups = append(p.Graph.Nodes[i].Groups, allJobs)
		}
	}
	for i := range p.Jobs {
		if l.link(i); p.file.tree.Err != nil {
			return p.file.tree.Err
		}
	}
	_, err := pipeline.New(p.Graph)
	return err
}

// allJobs is the name of a group of all jobs, which no resource group has.
const allJobs = "\x00all"

// readRun reads the keys that say when, how often and for how long the job runs.
func (d *draft) readRun(planned *Planned, node *pipeline.Node, job *Job) {
	t, own := d.file.tree, find(d.node, "when")
	planned.When = cmp.Or(d.ruling.when, valueOfNode(own), "on_success")
	switch planned.When {
	case "on_success":
	case "on_failure":
		node.When = pipeline.OnFailure
	case "always":
		node.When = pipeline.Always
	case "manual":
		node.Manual = true
	case "delayed":
		at := cmp.Or(find(d.ruling.rule, "start_in"), find(d.node, "start_in"))
		if isNull(at) {
			t.failf(d.at, "the job%s is delayed and has no start_in; write start_in: 5 minutes", lang.QuoteName(d.name))
			return
		}
		if node.Delay = d.duration("start_in", at); node.Delay > maxDelay {
			t.failf(at, "start_in is at most a week")
		}
	default:
		t.failf(cmp.Or(own, d.at), "when is one of %s", strings.Join(whens[:len(whens)-1], ", "))
	}
	allowed := cmp.Or(d.ruling.allowFailure, d.key("allow_failure"))
	node.MayFail = d.allowFailure(allowed)
	// GitLab: a manual job may fail by default, but not if a rule makes it manual.
	node.Optional = node.MayFail.Any || allowed == nil && valueOfNode(own) == "manual"
	node.MayFail.Any = node.MayFail.Any || allowed == nil && valueOfNode(own) == "manual"
	d.readRetry(node)
	interruptible := cmp.Or(find(d.ruling.rule, "interruptible"), d.key("interruptible"))
	planned.Interruptible = d.yes("interruptible", interruptible, false)
	if n := d.key("timeout"); n != nil {
		planned.Timeout = d.duration("timeout", n)
	}
	e := d.file.expander(d.file.literal(nil, job.Variables))
	if n := d.key("tags"); n != nil {
		for _, item := range t.flat("tags", n, 0) {
			if tag := e.expand(variable{at: item, value: valueOfNode(item)}); tag != "" {
				planned.Tags = append(planned.Tags, tag)
			}
		}
	}
	if n := d.key("resource_group"); n != nil && d.isText("resource_group", n) {
		planned.ResourceGroup = e.expand(variable{at: n, value: n.Value})
		node.Groups = []string{planned.ResourceGroup}
	}
}

// key returns the value of a key of the job or of default, with its references replaced, or nil without a value.
func (d *draft) key(name string) *yaml.Node {
	n := d.get(name)
	if n != nil {
		n = d.file.resolve(n, nil)
	}
	if isNull(n) {
		return nil
	}
	return n
}

func valueOfNode(n *yaml.Node) string {
	if isNull(n) {
		return ""
	}
	return n.Value
}

// isText reports whether n is a scalar. If not, it fails.
func (d *draft) isText(label string, n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode {
		d.file.tree.failf(n, "%s must be a text, not %s", label, describe(n))
		return false
	}
	return true
}

// texts returns the texts in n, a text or a list of them.
func (d *draft) texts(label string, n *yaml.Node) (list []string) {
	for _, item := range d.file.tree.flat(label, n, 0) {
		if d.isText("an item of "+label, item) {
			list = append(list, item.Value)
		}
	}
	return list
}

// allowFailure reads allow_failure: true, false, or exit codes.
func (d *draft) allowFailure(n *yaml.Node) (m pipeline.Match) {
	switch {
	case isNull(n):
	case n.Kind == yaml.MappingNode:
		d.file.tree.checkKeys(n, "allow_failure", []string{"exit_codes"}, "")
		if codes := find(n, "exit_codes"); !isNull(codes) {
			m.ExitCodes = d.exitCodes("allow_failure", codes)
		}
	case n.Kind == yaml.ScalarNode && n.ShortTag() == tagBool:
		m.Any = n.Value == "true"
	default:
		d.file.tree.failf(n, "allow_failure is true, false or a mapping with exit_codes, not %s", describe(n))
	}
	return m
}

// maxRetries bounds retry, and maxDelay start_in, as GitLab does.
const (
	maxRetries = 2
	maxDelay   = 7 * 24 * time.Hour
)

// readRetry reads retry: a number, or a mapping. As in GitLab, a failure with one of the exit codes or one of the
// reasons is tried again, and without both every failure.
func (d *draft) readRetry(node *pipeline.Node) {
	n := d.key("retry")
	if n == nil {
		return
	}
	count := n
	if n.Kind == yaml.MappingNode {
		d.file.tree.checkKeys(n, "retry", []string{"max", "when", "exit_codes"}, "")
		count = find(n, "max")
		if codes := find(n, "exit_codes"); !isNull(codes) {
			node.RetryOn.ExitCodes = d.exitCodes("retry", codes)
		}
		if when := find(n, "when"); !isNull(when) {
			node.RetryOn.Reasons = d.texts("retry: when", when)
		}
	}
	node.RetryOn.Any = len(node.RetryOn.ExitCodes)+len(node.RetryOn.Reasons) == 0 ||
		slices.Contains(node.RetryOn.Reasons, "always")
	if !isNull(count) {
		node.Retries = d.number("retry", count, maxRetries)
	}
}

// exitCodes returns the exit codes in n, a number or a list of them.
func (d *draft) exitCodes(label string, n *yaml.Node) (codes []int) {
	for _, item := range d.file.tree.flat(label, n, 0) {
		codes = append(codes, d.number(label+": exit_codes", item, 1<<31-1))
	}
	return codes
}

// number returns the whole number n, from 0 to most.
func (d *draft) number(label string, n *yaml.Node, most int) int {
	var value int
	if n.Kind != yaml.ScalarNode || n.ShortTag() != tagInt {
		d.file.tree.failf(n, "%s must be a whole number, not %s", label, describe(n))
		return 0
	}
	if _, err := fmt.Sscan(n.Value, &value); err != nil || value < 0 || value > most {
		d.file.tree.failf(n, "%s must be a number from 0 to %d", label, most)
		return 0
	}
	return value
}
