package gitlabci

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// The names of the steps that scripts become.
const (
	scriptStep      = "script"
	afterScriptStep = "after_script"
)

const legacyScript = "builtin://" + lang.LegacyScriptStep

// The variables that bound scripts, and the bound of an after_script without one.
const (
	scriptTimeout      = "RUNNER_SCRIPT_TIMEOUT"
	afterScriptTimeout = "RUNNER_AFTER_SCRIPT_TIMEOUT"
	defaultAfterScript = "5m"
)

// jobStatus is the value of CI_JOB_STATUS in an after_script.
const jobStatus = `${{ steps.script.status == "success" && "success" || steps.script.status == "cancelled" && ` +
	`"canceled" || "failed" }}`

// compile makes the definition of the job.
func (d *draft) compile(job *Job) error {
	parts := map[string]*yaml.Node{}
	for _, key := range slices.Concat(stepLists, scripts) {
		n, err := d.get(key)
		if err != nil {
			return err
		}
		if !isNull(n) {
			parts[key] = n
		}
	}
	if parts["run"] != nil && find(d.node, "script") == nil {
		parts["before_script"], parts["after_script"] = nil, nil // from default, for jobs with a script
	}
	if find(d.node, "script") != nil {
		parts["run"] = nil // from default, for jobs without a script
	}
	if parts["run"] == nil && parts["script"] == nil {
		return d.file.tree.errorf(d.at, "the job%s has nothing to run; give it a script or a run", lang.Quote(d.name))
	}
	job.Script = parts["script"] != nil
	list := d.file.tree.made(d.at, yaml.SequenceNode)
	for _, add := range []func() error{
		func() error { return d.addSteps(list, "setup", parts["setup"], 0) },
		func() error { return d.addSteps(list, "run", parts["run"], 0) },
		func() error { return d.addScript(list, parts, job) },
		func() error { return d.addAfterScript(list, parts, job) },
		func() error { return d.addTeardown(list, parts["teardown"]) },
	} {
		if err := add(); err != nil {
			return err
		}
	}
	if done, err := d.fromVariable(parts, job); done || err != nil {
		return err
	}
	var err error
	job.Definition, err = lang.FromNode(list, d.file.tree.origin)
	return err
}

// addTeardown adds the steps in n, which always run unless they have a when.
func (d *draft) addTeardown(list, n *yaml.Node) error {
	from := len(list.Content)
	if err := d.addSteps(list, "teardown", n, 0); err != nil {
		return err
	}
	t := d.file.tree
	for i := from; i < len(list.Content); i++ {
		step := list.Content[i]
		if step.Kind != yaml.MappingNode || find(step, "when") != nil {
			continue
		}
		always := t.copyOf(step)
		always.Content = append(slices.Clone(step.Content), t.text(step, "when"), t.text(step, lang.Always))
		list.Content[i] = always
	}
	return nil
}

// addSteps adds the steps in n. References may have made n a list of lists.
func (d *draft) addSteps(list *yaml.Node, key string, n *yaml.Node, depth int) error {
	switch {
	case n == nil:
		return nil
	case n.Kind != yaml.SequenceNode:
		return d.file.tree.errorf(n, "%s must be a list of steps, not %s", key, describe(n))
	case depth > maxReferences:
		return d.file.tree.errorf(n, "%s is nested deeper than %d", key, maxReferences)
	}
	d.unresolved(n)
	for _, step := range n.Content {
		if step.Kind != yaml.SequenceNode {
			list.Content = append(list.Content, step)
			continue
		}
		if err := d.addSteps(list, key, step, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// addScript adds the lines of before_script and script as one step.
func (d *draft) addScript(list *yaml.Node, parts map[string]*yaml.Node, job *Job) error {
	if parts["script"] == nil {
		return nil
	}
	var lines []string
	for _, key := range []string{"before_script", "script"} {
		more, err := d.lines(key, parts[key], 0)
		if err != nil {
			return err
		}
		lines = append(lines, more...)
	}
	step, err := d.scriptStep(parts["script"], scriptStep, lines)
	if err != nil {
		return err
	}
	if err := d.limit(step, job, scriptTimeout, ""); err != nil {
		return err
	}
	list.Content = append(list.Content, step)
	return nil
}

// addAfterScript adds after_script as a step that always runs, for a bounded time.
func (d *draft) addAfterScript(list *yaml.Node, parts map[string]*yaml.Node, job *Job) error {
	n := parts["after_script"]
	if n == nil || parts["script"] == nil {
		return nil
	}
	lines, err := d.lines("after_script", n, 0)
	if err != nil || len(lines) == 0 {
		return err
	}
	step, err := d.scriptStep(n, afterScriptStep, lines)
	if err != nil {
		return err
	}
	if err := d.limit(step, job, afterScriptTimeout, defaultAfterScript); err != nil {
		return err
	}
	d.set(step, "when", lang.Always)
	t := d.file.tree
	step.Content = append(step.Content, t.text(n, "env"),
		t.made(n, yaml.MappingNode, t.text(n, "CI_JOB_STATUS"), t.text(n, jobStatus)))
	list.Content = append(list.Content, step)
	job.MayFail = append(job.MayFail, afterScriptStep)
	return nil
}

// scriptStep returns a step that runs lines. ${{ has no meaning in them.
func (d *draft) scriptStep(at *yaml.Node, name string, lines []string) (*yaml.Node, error) {
	t := d.file.tree
	text := strings.Join(lines, "\n")
	if strings.TrimSpace(text) == "" {
		return nil, t.errorf(at, "%s is empty; write the commands for the shell", name)
	}
	step := t.made(at, yaml.MappingNode)
	d.set(step, "name", name)
	d.set(step, "step", legacyScript)
	inputs := t.made(at, yaml.MappingNode, t.text(at, "script"), t.text(at, lang.Escape(text)))
	step.Content = append(step.Content, t.text(at, "inputs"), inputs)
	return step, t.spend(inputs.Content[1])
}

func (d *draft) set(step *yaml.Node, key, value string) {
	t := d.file.tree
	step.Content = append(step.Content, t.text(step, key), t.text(step, value))
}

// limit gives a step the timeout in a variable or, without one, otherwise.
func (d *draft) limit(step *yaml.Node, job *Job, variable, otherwise string) error {
	limit := cmp.Or(valueOf(job.Variables, variable), otherwise)
	if limit == "" {
		return nil
	}
	if took, err := time.ParseDuration(limit); err != nil || took <= 0 {
		return d.file.tree.errorf(step, "the variable %s must be a time above 0, such as 90s, 5m or 1h30m", variable)
	}
	d.set(step, "timeout", limit)
	return nil
}

// maxNested is the deepest nesting of lists of lines.
const maxNested = 10

// lines returns the lines of a script: a text, or nested lists of texts.
func (d *draft) lines(key string, n *yaml.Node, depth int) ([]string, error) {
	switch {
	case n == nil:
		return nil, nil
	case depth > maxNested:
		return nil, d.file.tree.errorf(n, "%s is nested deeper than %d", key, maxNested)
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str":
		d.unresolved(n)
		return []string{n.Value}, nil
	case n.Kind != yaml.SequenceNode:
		return nil, d.file.tree.errorf(n, "a line of %s must be a text, not %s", key, describe(n))
	}
	var all []string
	for _, item := range n.Content {
		more, err := d.lines(key, item, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// unresolved adds a notice if n has $[[ ]].
func (d *draft) unresolved(n *yaml.Node) {
	const notice = "$[[ ]] stays as it is: only a server replaces it by the inputs of the file"
	if holdsText(n, "$[[") && !slices.Contains(d.notices, notice) {
		d.notices = append(d.notices, notice)
	}
}

func holdsText(n *yaml.Node, text string) bool {
	return strings.Contains(n.Value, text) ||
		slices.ContainsFunc(n.Content, func(item *yaml.Node) bool { return holdsText(item, text) })
}

// stepsVariable holds the steps that the command ci of this program runs.
const stepsVariable = "STEPS"

// fromVariable compiles a job whose script only runs the steps in the variable STEPS.
func (d *draft) fromVariable(parts map[string]*yaml.Node, job *Job) (done bool, err error) {
	if parts["before_script"] != nil || parts["setup"] != nil || parts["teardown"] != nil {
		return false, nil
	}
	lines, err := d.lines("script", parts["script"], 0)
	text := valueOf(job.Variables, stepsVariable)
	if err != nil || text == "" || len(lines) != 1 || !callsUs(lines[0]) {
		return false, err
	}
	if job.Definition, err = lang.Parse(stepsVariable, []byte(text)); err != nil {
		return true, err
	}
	job.Variables = slices.DeleteFunc(job.Variables, func(v Variable) bool { return v.Name == stepsVariable })
	job.Script, job.MayFail = false, nil
	if parts["after_script"] != nil {
		d.notices = append(d.notices, "after_script does not run in a job that runs STEPS; add a step with when: always")
	}
	return true, nil
}

// callsUs reports whether a line is the ci command of this program: /path/to/step-runner ci.
func callsUs(line string) bool {
	words := strings.Fields(line)
	if len(words) != 2 || words[1] != "ci" {
		return false
	}
	name := path.Base(words[0])
	return name == "step-runner" || name == "stepmux"
}

func valueOf(vars []Variable, name string) string {
	if i := slices.IndexFunc(vars, func(v Variable) bool { return v.Name == name }); i >= 0 {
		return vars[i].Value
	}
	return ""
}
