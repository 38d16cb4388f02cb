package gitlabci

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Job is a compiled job.
type Job struct {
	// Name is the name of the job or, for a parallel build, of that build.
	Name string
	// Definition has its steps.
	Definition *pb.Definition
	// Places finds the places of the Definition's expressions.
	Places *lang.Locator
	// Variables are in the order of the file, each name once.
	Variables []Variable
	// Script says that a shell runs the job (script:). It reads the variables from its environment.
	Script bool
	// MayFail names the steps whose failure does not change the result of the job.
	MayFail []string
	// Container has the keys image and services of the job, in YAML, with their variables replaced. It is empty if the
	// job has neither.
	Container []byte
	// Artifacts describes the files that a job of a pipeline gives to others, and Caches those that it keeps.
	Artifacts Artifacts
	Caches    []Cache
	// inProject are the variables whose values contain a path of the project, which is not known before the job runs.
	inProject []Variable
	// Notices are lines about keys that have no effect here.
	Notices []string
	// Warnings are about values that GitLab reads in an unexpected way, and about steps that may not do what their
	// author expects; see [lang.Vet].
	Warnings []*lang.Error
}

// The keys of a job.
var (
	// stepLists are lists of steps.
	stepLists = []string{"setup", "run", "teardown"}
	// scripts are lists of lines for a shell.
	scripts = []string{"before_script", "script", "after_script"}
	// about are known keys that do not run anything.
	about = []string{
		"extends", "variables", "stage", "inherit", "tags", "interruptible", "parallel", "rules", "only", "except",
		"trigger",
	}
	// ignored are keys for a server or a runner.
	ignored = []string{
		"allow_failure", "artifacts", "cache", "coverage", "dast_configuration", "dependencies", "environment", "hooks",
		"id_tokens", "identity", "image", "manual_confirmation", "needs", "pages", "publish", "release", "resource_group",
		"retry", "secrets", "services", "start_in", "timeout", "when",
	}
)

// ofPipelines are those of ignored that have an effect in a pipeline.
var ofPipelines = []string{
	"allow_failure", "artifacts", "cache", "dependencies", "needs", "resource_group", "retry", "start_in", "timeout",
	"when",
}

// defaultStage is the stage of a job that does not name one.
const defaultStage = "test"

// jobKeys are all keys of a job.
var jobKeys = slices.Concat(stepLists, scripts, about, ignored)

// draft is a job before it is compiled.
type draft struct {
	file    *File
	name    string
	at      *yaml.Node // its key
	node    *yaml.Node // merged over the jobs it extends
	inherit map[string]bool
	share   share
	notices []string
	ruling  ruling // once its variables are known
	// planned says that the job runs as a part of its pipeline, not because the user named it.
	planned bool
	// values are variables that earlier jobs of the pipeline have reported.
	values []Variable
}

// Job compiles the job name, or one of its parallel builds. If there is no such job, the error suggests another name or
// lists the jobs. Errors of the file have the type [*lang.Error].
func (f *File) Job(name string) (*Job, error) {
	f.tree.Err = nil // the error of an earlier job
	for _, input := range f.missing {
		f.tree.failf(input, "the input%s has no value and no default; give it one by --input", lang.QuoteName(input.Value))
	}
	d := f.find(name)
	d.check()
	return f.compile(d, d.choose(name))
}

// compile compiles one build of a job.
func (f *File) compile(d *draft, s share) (*Job, error) { return f.finish(d, d.open(s)) }

// open returns one build of the job with its variables, and sets the ruling of the draft.
func (d *draft) open(s share) *Job {
	d.share = s
	job := &Job{Name: s.name}
	job.Variables = d.variables(job)
	return job
}

// finish compiles a job that has its variables.
func (f *File) finish(d *draft, job *Job) (*Job, error) {
	if trigger := findKey(d.node, "trigger"); trigger != nil {
		d.compileTrigger(trigger, job)
	} else {
		d.compile(job)
	}
	job.Container = d.container(job)
	if d.planned {
		d.readArtifacts(job)
		d.readCaches(job)
	}
	d.warnOfKeys()
	job.Notices = d.allNotices()
	job.Warnings = append(slices.Clone(f.tree.warnings), job.Warnings...)
	if f.tree.Err != nil {
		return nil, f.tree.Err
	}
	return job, nil
}

// find returns the job name, merged over the jobs it extends. name may be that of a parallel build.
func (f *File) find(name string) *draft {
	t := f.tree
	t.keep(f.warned) // forgets those of an earlier job
	if f.jobs[name].node == nil && f.jobs[baseName(name)].node != nil {
		name = baseName(name)
	}
	d := &draft{file: f, name: name, at: f.jobs[name].key, node: &yaml.Node{}}
	switch {
	case d.at == nil:
		t.fail(t.Text.Errorf(nil, "there is no job%s%s%s", lang.QuoteName(name),
			lang.Suggest(name, f.Jobs(), "; there is "+lang.QuoteNames(f.Jobs())), f.mayBeElsewhere()))
		d.at = f.top
	case strings.HasPrefix(name, "."):
		t.failf(d.at, "the job%s is hidden: its name begins with a dot, and other jobs extend it", lang.QuoteName(name))
	default:
		d.node = f.resolve(f.extended(name, d.at, nil), nil)
	}
	if d.node.Kind != yaml.MappingNode {
		t.failf(d.at, "the job%s must be a mapping with script: or run:, not %s", lang.QuoteName(name), describe(d.node))
		d.node = &yaml.Node{}
	}
	return d
}

// check checks the keys of the job.
func (d *draft) check() {
	t := d.file.tree
	t.checkKeys(d.node, "a job", jobKeys, "")
	if find(d.node, "run") != nil {
		for _, key := range scripts {
			if other := findKey(d.node, key); other != nil {
				t.failf(other, "the job%s has both run and %s; a job has one of them", lang.QuoteName(d.name), key)
			}
		}
	}
	d.readInherit()
}

// warnOfKeys adds warnings about values of keys for a server or a runner.
func (d *draft) warnOfKeys() {
	t := d.file.tree
	if n := find(d.node, "when"); !isNull(n) && !slices.Contains(whens[:len(whens)-1], n.Value) {
		t.warnf(n, "GitLab refuses this value; the key when of a job takes %s", strings.Join(whens[:len(whens)-1], ", "))
	}
	for _, key := range slices.Concat([]string{"stage", "tags", "rules", "only", "except"}, ignored) {
		if n := d.get(key); !isNull(n) {
			t.warnOf(n, slices.Contains(ofTexts, key))
		}
	}
}

// ofTexts are keys whose values are texts.
var ofTexts = []string{"dependencies", "resource_group", "stage", "tags"}

// stages returns the stages of the pipeline.
func (f *File) stages() []string {
	names := []string{"build", "test", "deploy"}
	if n := f.globals["stages"]; !isNull(n) {
		names = nil
		for _, item := range f.resolve(n, nil).Content {
			if item.Kind != yaml.ScalarNode {
				f.tree.failf(item, "stages takes names, not %s", describe(item))
			}
			names = append(names, item.Value)
		}
	}
	return slices.Concat([]string{".pre"}, names, []string{".post"})
}

// checkPlace checks that the stage of the job and the jobs in its needs exist, and returns these jobs. It skips names
// with variables, which only a server can replace.
func (d *draft) checkPlace(stages, jobs []string) (needed []string) {
	t := d.file.tree
	there := "; there are " + lang.QuoteNames(stages)
	switch n := find(d.node, "stage"); {
	case len(d.file.left) > 0: // one of the left-out files may define the stages
	case n == nil && !slices.Contains(stages, defaultStage):
		t.failf(d.at, "the job%s has no stage, and %q does not exist%s", lang.QuoteName(d.name), defaultStage, there)
	case n != nil && n.Kind != yaml.ScalarNode:
		t.failf(n, "the stage of the job%s must be a name, not %s", lang.QuoteName(d.name), describe(n))
	case n != nil && !strings.Contains(n.Value, "$") && !slices.Contains(stages, n.Value):
		t.failf(n, "the job%s has the stage%s, which does not exist%s", lang.QuoteName(d.name), lang.QuoteName(n.Value),
			lang.Suggest(n.Value, stages, there))
	}
	needs := find(d.node, "needs")
	if isNull(needs) {
		return nil
	}
	for _, n := range t.flat("needs", needs, 1) {
		optional := false
		if n.Kind == yaml.MappingNode {
			if find(n, "pipeline") != nil || find(n, "project") != nil {
				continue
			}
			may := find(n, "optional")
			optional = may != nil && may.Value == "true"
			n = find(n, "job")
		}
		switch {
		case isNull(n) || strings.Contains(n.Value, "$"): // as an empty item of an anchor, which GitLab drops
		case d.file.jobs[n.Value].node != nil:
			needed = append(needed, n.Value)
		case d.file.jobs[baseName(n.Value)].node != nil:
			needed = append(needed, baseName(n.Value))
		case !optional && len(d.file.left) == 0:
			t.failf(n, "the job%s needs%s, and there is no such job%s", lang.QuoteName(d.name), lang.QuoteName(n.Value),
				lang.Suggest(n.Value, jobs, ""))
		}
	}
	return needed
}

// readInherit reads which parts of default and which global variables the job inherits.
func (d *draft) readInherit() {
	t := d.file.tree
	d.inherit = map[string]bool{}
	n := find(d.node, "inherit")
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		t.failf(n, "inherit must be a mapping with default and variables, not %s", describe(n))
		return
	}
	t.checkKeys(n, "inherit", []string{"default", "variables"}, "")
	for key, value := range entries(n) {
		switch {
		case value.Kind == yaml.ScalarNode && value.Value == "true":
		case value.Kind == yaml.ScalarNode && value.Value == "false":
			d.inherit[key.Value] = true
		case value.Kind == yaml.SequenceNode:
			d.inherit[key.Value] = true
			for _, item := range value.Content {
				d.inherit[key.Value+"."+item.Value] = true
			}
		default:
			t.failf(value, "inherit: %s takes true, false or a list of names", key.Value)
		}
	}
}

// inherits reports whether the job inherits name from part, which is default or variables.
func (d *draft) inherits(part, name string) bool { return !d.inherit[part] || d.inherit[part+"."+name] }

// get returns the value of key in the job or else in default, or nil. It does not resolve references in default.
func (d *draft) get(key string) *yaml.Node {
	if n := find(d.node, key); n != nil {
		return n
	}
	if !slices.Contains(defaults, key) || !d.inherits("default", key) {
		return nil
	}
	n := find(d.file.globals["default"], key)
	if n == nil && slices.Contains(globals, key) {
		n = d.file.globals[key] // an older form of default
	}
	return n
}

// ofContainer are the keys that describe the job's container.
var ofContainer = []string{"image", "services"}

// container returns the keys of the job's container as YAML, with variables replaced.
func (d *draft) container(job *Job) []byte {
	t := d.file.tree
	e := d.file.expander(d.file.literal(nil, job.Variables))
	var expand func(n *yaml.Node) *yaml.Node
	expand = func(n *yaml.Node) *yaml.Node {
		c := t.copyOf(n)
		if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "$") {
			c.Value = e.expand(variable{at: n, value: n.Value})
		}
		for _, child := range n.Content {
			c.Content = append(c.Content, expand(child))
		}
		return c
	}
	top := t.made(d.at, yaml.MappingNode)
	for _, key := range ofContainer {
		if n := d.get(key); !isNull(n) {
			n = d.file.resolve(n, nil)
			t.warnOfValues(n)
			top.Content = append(top.Content, t.text(n, key), expand(n))
		}
	}
	if len(top.Content) == 0 || t.Err != nil {
		return nil
	}
	text, err := yaml.Marshal(top)
	if err != nil {
		t.fail(t.Text.Errorf(d.at, "the image of the job%s cannot be read: %v", lang.QuoteName(d.name), err))
	}
	return text
}

// variables returns the variables of the job. As in GitLab, later ones override earlier ones in this order: predefined
// ones, those of the file, of the rules of its workflow, of the job, of the matrix, of the rules of the job, those that
// other jobs have reported, and given ones.
func (d *draft) variables(job *Job) []Variable {
	f := d.file
	stage := defaultStage
	if n := find(d.node, "stage"); n != nil && n.Kind == yaml.ScalarNode {
		stage = n.Value
	}
	predefined := append(slices.Clone(f.cfg.Predefined), Variable{"CI_PROJECT_DIR", cmp.Or(f.cfg.ProjectDir, projectDir)},
		Variable{"CI_JOB_NAME", d.share.name}, Variable{"CI_JOB_STAGE", stage})
	if s := d.share; s.total > 0 {
		predefined = append(predefined, Variable{"CI_NODE_INDEX", strconv.Itoa(s.index)},
			Variable{"CI_NODE_TOTAL", strconv.Itoa(s.total)})
	}
	list := f.literal(nil, predefined)
	list = d.global(list, f.globals["variables"])
	list = d.global(list, f.workflow(f.expander(f.literal(list, f.cfg.Given))))
	list = f.variables(list, find(d.node, "variables"))
	for _, v := range d.share.vars {
		list = setVariable(list, v)
	}
	d.ruling = d.judge(f.expander(f.literal(list, f.cfg.Given)))
	if !d.planned {
		d.tell(d.ruling)
	}
	list = f.literal(f.literal(f.variables(list, d.ruling.variables), d.values), f.cfg.Given)
	e := f.expander(list)
	vars := make([]Variable, 0, len(list))
	for _, v := range list {
		value := e.value(v.name)
		if strings.Contains(value, projectDir) {
			job.inProject = append(job.inProject, Variable{v.name, value})
		} else {
			vars = append(vars, Variable{v.name, value})
		}
	}
	return vars
}

// global adds the variables in n that the job inherits.
func (d *draft) global(list []variable, n *yaml.Node) []variable {
	if isNull(n) {
		return list
	}
	for _, v := range d.file.variables(nil, d.file.resolve(n, nil)) {
		if d.inherits("variables", v.name) {
			list = setVariable(list, v)
		}
	}
	return list
}

// literal adds vars without expansion: $ has no meaning in them.
func (f *File) literal(list []variable, vars []Variable) []variable {
	for _, v := range vars {
		list = setVariable(list, variable{at: f.top, name: v.Name, value: v.Value})
	}
	return list
}

// allNotices returns the notices of the job.
func (d *draft) allNotices() []string {
	var left []string
	for _, key := range ignored {
		if d.planned && slices.Contains(ofPipelines, key) {
			continue
		}
		if !isNull(d.get(key)) && (!d.file.cfg.InContainer || !slices.Contains(ofContainer, key)) {
			left = append(left, key)
		}
	}
	left = append(left, d.file.notices...)
	var notices []string
	if len(left) > 0 {
		text := fmt.Sprintf("not done here, but by a server or runner: %s", strings.Join(left, ", "))
		if slices.ContainsFunc(ofContainer, func(key string) bool { return slices.Contains(left, key) }) {
			text += " (image and services are with --in-image of local and run, and of submit for a whole pipeline)"
		}
		notices = append(notices, text)
	}
	return append(notices, d.notices...)
}
