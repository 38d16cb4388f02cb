package gitlabci

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Job is a compiled job.
type Job struct {
	// Definition has its steps.
	Definition *pb.Definition
	// Variables are in the order of the file, each name once.
	Variables []Variable
	// Script tells that a shell runs the job (script:), which reads the variables from its environment.
	Script bool
	// MayFail names the steps whose failure does not change the result of the job.
	MayFail []string
	// Notices are lines about keys that have no effect here.
	Notices []string
}

// The keys of a job.
var (
	// stepLists are lists of steps.
	stepLists = []string{"setup", "run", "teardown"}
	// scripts are lists of lines for a shell.
	scripts = []string{"before_script", "script", "after_script"}
	// about are known keys that run nothing.
	about = []string{"extends", "variables", "stage", "inherit", "tags", "interruptible", "allow_failure"}
	// ignored are keys for a server or a runner.
	ignored = []string{
		"artifacts", "cache", "coverage", "dast_configuration", "dependencies", "environment", "except", "hooks",
		"id_tokens", "identity", "image", "manual_confirmation", "needs", "only", "pages", "parallel", "publish",
		"release", "resource_group", "retry", "rules", "secrets", "services", "start_in", "timeout", "when",
	}
	// inheritable are the keys that a job takes from default.
	inheritable = append(append(slices.Clone(stepLists), "before_script", "after_script"), ignored...)
)

// jobKeys are all keys of a job.
var jobKeys = slices.Concat(stepLists, scripts, about, ignored, []string{"trigger"})

// draft is a job before it is compiled.
type draft struct {
	file    *File
	name    string
	at      *yaml.Node // its key
	node    *yaml.Node // merged over the jobs it extends
	inherit map[string]bool
	notices []string
}

// Job compiles the job name. The variables of the file replace predefined, and given replaces those of the file. If
// there is no such job the error suggests another name or lists the jobs. Errors of the file have the type
// [*lang.Error].
func (f *File) Job(name string, predefined []Variable, given ...Variable) (*Job, error) {
	d, err := f.find(name)
	if err != nil {
		return nil, err
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	vars, err := d.variables(predefined, given)
	if err != nil {
		return nil, err
	}
	job := &Job{Variables: vars}
	if err := d.compile(job); err != nil {
		return nil, err
	}
	job.Notices = d.allNotices()
	return job, nil
}

// maxListed is the largest number of jobs that an error names.
const maxListed = 20

// find returns the job name, merged over the jobs it extends.
func (f *File) find(name string) (*draft, error) {
	key := findKey(f.top, name)
	switch {
	case key == nil || slices.Contains(globals, name):
		return nil, f.noJob(name)
	case strings.HasPrefix(name, "."):
		return nil, f.tree.errorf(key, "the job%s is hidden: its name begins with a dot, and other jobs extend it",
			lang.Quote(name))
	}
	n, err := f.extended(name, key, nil)
	if err != nil {
		return nil, err
	}
	if n, err = f.resolve(n, nil); err != nil {
		return nil, err
	}
	if n.Kind != yaml.MappingNode {
		return nil, f.tree.errorf(key, "the job%s must be a mapping with script: or run:, not %s", lang.Quote(name),
			describe(n))
	}
	return &draft{file: f, name: name, at: key, node: n}, nil
}

func (f *File) noJob(name string) error {
	jobs := f.Jobs()
	return f.tree.main.Errorf(nil, "there is no job%s%s", lang.Quote(name),
		lang.Suggest(name, jobs, "; there is "+List(jobs)))
}

// List returns names in quotes, without those after the first 20.
func List(names []string) string {
	more := ""
	if len(names) > maxListed {
		more = fmt.Sprintf(" and %d more", len(names)-maxListed)
		names = names[:maxListed]
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = fmt.Sprintf("%.64q", name)
	}
	return strings.Join(quoted, ", ") + more
}

// check checks the keys of the job.
func (d *draft) check() error {
	t := d.file.tree
	for key := range entries(d.node) {
		if slices.Contains(jobKeys, key.Value) {
			continue
		}
		return t.errorf(key, "unknown key%s of a job%s", lang.Quote(key.Value), lang.Suggest(key.Value, jobKeys, ""))
	}
	if trigger := findKey(d.node, "trigger"); trigger != nil {
		return t.errorf(trigger, "the job%s starts another pipeline, which is not possible here", lang.Quote(d.name))
	}
	if find(d.node, "run") != nil {
		for _, key := range scripts {
			if other := findKey(d.node, key); other != nil {
				return t.errorf(other, "the job%s has both run and %s; a job has one of them", lang.Quote(d.name), key)
			}
		}
	}
	return d.readInherit()
}

// readInherit reads the parts of default and the global variables that the job takes.
func (d *draft) readInherit() error {
	d.inherit = map[string]bool{}
	n := find(d.node, "inherit")
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return d.file.tree.errorf(n, "inherit must be a mapping with default and variables, not %s", describe(n))
	}
	for key, value := range entries(n) {
		if key.Value != "default" && key.Value != "variables" {
			return d.file.tree.errorf(key, "unknown key%s of inherit; it has default, variables", lang.Quote(key.Value))
		}
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
			return d.file.tree.errorf(value, "inherit: %s takes true, false or a list of names", key.Value)
		}
	}
	return nil
}

// inherits reports whether the job takes name of what: of default or of variables.
func (d *draft) inherits(what, name string) bool { return !d.inherit[what] || d.inherit[what+"."+name] }

// get returns the value of key in the job or else in default.
func (d *draft) get(key string) (*yaml.Node, error) {
	if n := find(d.node, key); n != nil {
		return n, nil
	}
	if !slices.Contains(inheritable, key) || !d.inherits("default", key) {
		return nil, nil
	}
	n := find(find(d.file.top, "default"), key)
	if n == nil && slices.Contains(globals, key) {
		n = find(d.file.top, key) // an older form of default
	}
	if n == nil {
		return nil, nil
	}
	return d.file.resolve(n, nil)
}

// variables returns the variables of the job.
func (d *draft) variables(predefined, given []Variable) ([]Variable, error) {
	literal := func(list []variable, vars []Variable) []variable {
		for _, v := range vars {
			list = setVariable(list, variable{at: d.at, name: v.Name, value: v.Value})
		}
		return list
	}
	stage := "test"
	if n := find(d.node, "stage"); n != nil && n.Kind == yaml.ScalarNode {
		stage = n.Value
	}
	list := literal(nil, predefined)
	list = literal(list, []Variable{{"CI_JOB_NAME", d.name}, {"CI_JOB_STAGE", stage}})
	global, err := d.file.globalVariables()
	if err != nil {
		return nil, err
	}
	for _, v := range global {
		if d.inherits("variables", v.name) {
			list = setVariable(list, v)
		}
	}
	if list, err = d.file.variables(list, find(d.node, "variables")); err != nil {
		return nil, err
	}
	list = literal(list, given)
	e := d.file.expander(list)
	vars := make([]Variable, len(list))
	for i, v := range list {
		value, err := e.value(v.name)
		if err != nil {
			return nil, err
		}
		vars[i] = Variable{v.name, value}
	}
	return vars, nil
}

func (f *File) globalVariables() ([]variable, error) {
	n := find(f.top, "variables")
	if n == nil {
		return nil, nil
	}
	n, err := f.resolve(n, nil)
	if err != nil {
		return nil, err
	}
	return f.variables(nil, n)
}

// allNotices returns the notices of the job.
func (d *draft) allNotices() []string {
	var left []string
	for _, key := range ignored {
		if n, err := d.get(key); err == nil && !isNull(n) {
			left = append(left, key)
		}
	}
	left = append(left, d.file.notices...)
	var notices []string
	if len(left) > 0 {
		notices = append(notices, fmt.Sprintf("not done here, but by a server or runner: %s", strings.Join(left, ", ")))
	}
	return append(notices, d.notices...)
}
