package gitlabci

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// The names of the steps that run the scripts of a job.
const (
	scriptStep      = "script"
	afterScriptStep = "after_script"
)

// managerScript is the step that shows each command of a script before it runs, as GitLab Runner does.
const managerScript = "builtin://" + lang.ManagerScriptStep

// The variables that bound the time of scripts, and the default for an after_script.
const (
	scriptTimeout      = "RUNNER_SCRIPT_TIMEOUT"
	afterScriptTimeout = "RUNNER_AFTER_SCRIPT_TIMEOUT"
	defaultAfterScript = "5m"
)

// ignoreErrors is the variable with false if an after_script that fails fails the job.
const ignoreErrors = "AFTER_SCRIPT_IGNORE_ERRORS"

// jobStatus is the value of CI_JOB_STATUS in an after_script.
const jobStatus = `${{ steps.script.status == "success" && "success" || steps.script.status == "cancelled" && ` +
	`"canceled" || "failed" }}`

// compile makes the definition of the job.
func (d *draft) compile(job *Job) {
	t := d.file.tree
	parts := map[string]*yaml.Node{}
	for _, key := range slices.Concat(stepLists, scripts) {
		n := d.get(key)
		if n != nil {
			n = d.file.resolve(n, nil)
		}
		if !isNull(n) {
			parts[key] = n
		}
	}
	if parts["run"] != nil && find(d.node, "script") == nil {
		parts["before_script"], parts["after_script"] = nil, nil // from default, where they are for jobs with a script
	}
	if find(d.node, "script") != nil {
		parts["run"] = nil // from default, where it is for jobs without a script
	}
	if parts["run"] == nil && parts["script"] == nil {
		t.failf(d.at, "the job%s has nothing to run; give it a script or a run%s", lang.QuoteName(d.name),
			d.file.mayBeElsewhere())
		return
	}
	job.Script = parts["script"] != nil
	list := t.made(d.at, yaml.SequenceNode)
	d.addSteps(list, "setup", parts["setup"])
	d.addSteps(list, "run", parts["run"])
	d.addScripts(list, parts, job)
	d.addTeardown(list, parts["teardown"])
	if t.Err != nil || d.fromVariable(parts, job) {
		return
	}
	d.finish(list, job)
}

// addTeardown adds the steps in n. They always run, unless they have a when.
func (d *draft) addTeardown(list, n *yaml.Node) {
	from := len(list.Content)
	d.addSteps(list, "teardown", n)
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
}

// addSteps adds the steps in n.
func (d *draft) addSteps(list *yaml.Node, key string, n *yaml.Node) {
	switch {
	case n == nil:
		return
	case n.Kind != yaml.SequenceNode:
		d.file.tree.failf(n, "%s must be a list of steps, not %s", key, describe(n))
		return
	}
	d.unresolved(n)
	d.file.tree.warnOfValues(n)
	list.Content = append(list.Content, d.file.tree.flat(key, n, 0)...)
}

// addScripts adds the lines of before_script and script as one step, and after_script as a step that always runs, for a
// bounded time.
func (d *draft) addScripts(list *yaml.Node, parts map[string]*yaml.Node, job *Job) {
	if parts["script"] == nil {
		return
	}
	lines := append(d.lines("before_script", parts["before_script"]), d.lines("script", parts["script"])...)
	step := d.scriptStep(parts["script"], scriptStep, lines)
	d.limit(step, job, scriptTimeout, "")
	if len(job.inProject) > 0 {
		d.env(step, job)
	}
	list.Content = append(list.Content, step)

	n := parts["after_script"]
	if lines = d.lines("after_script", n); len(lines) == 0 {
		return
	}
	step = d.scriptStep(n, afterScriptStep, lines)
	d.limit(step, job, afterScriptTimeout, defaultAfterScript)
	d.set(step, "when", lang.Always)
	t := d.file.tree
	env := d.env(step, job)
	env.Content = append(env.Content, t.text(n, "CI_JOB_STATUS"), t.text(n, jobStatus))
	list.Content = append(list.Content, step)
	if ignores, err := strconv.ParseBool(valueOf(job.Variables, ignoreErrors)); err != nil || ignores {
		job.MayFail = append(job.MayFail, afterScriptStep)
	}
}

// env gives a step the variables whose values contain a path of the project, and returns the node of its environment.
func (d *draft) env(step *yaml.Node, job *Job) *yaml.Node {
	t := d.file.tree
	env := t.made(step, yaml.MappingNode)
	for _, v := range job.inProject {
		env.Content = append(env.Content, t.text(step, v.Name), t.text(step, inProjectDir(v.Value)))
	}
	step.Content = append(step.Content, t.text(step, "env"), env)
	return env
}

// scriptStep returns a step that runs commands. ${{ has no meaning in them.
func (d *draft) scriptStep(at *yaml.Node, name string, commands []string) *yaml.Node {
	t := d.file.tree
	if strings.TrimSpace(strings.Join(commands, "")) == "" {
		t.failf(at, "%s is empty; write the commands for the shell", name)
	}
	step := t.made(at, yaml.MappingNode)
	d.set(step, "name", name)
	d.set(step, "step", managerScript)
	list := t.made(at, yaml.SequenceNode)
	for _, command := range commands {
		text := t.text(at, lang.Escape(command))
		t.spend(text)
		list.Content = append(list.Content, text)
	}
	inputs := t.made(at, yaml.MappingNode, t.text(at, "script"), list)
	if !d.file.cfg.Colours {
		plain := t.made(at, yaml.ScalarNode)
		plain.Tag, plain.Value = "!!bool", "true"
		inputs.Content = append(inputs.Content, t.text(at, "posix_escape"), plain)
	}
	step.Content = append(step.Content, t.text(at, "inputs"), inputs)
	return step
}

// compileTrigger makes the definition of a job that starts another pipeline: a step that does nothing, and a notice.
func (d *draft) compileTrigger(trigger *yaml.Node, job *Job) {
	t := d.file.tree
	step := t.made(trigger, yaml.MappingNode)
	d.set(step, "name", "trigger")
	d.set(step, "script", ":")
	d.set(step, "if", "false")
	if !d.planned {
		d.notices = append(d.notices, "the job starts another pipeline (trigger), which is not possible here: nothing runs")
	}
	d.finish(t.made(trigger, yaml.SequenceNode, step), job)
}

// finish compiles the list of the steps of the job.
func (d *draft) finish(list *yaml.Node, job *Job) {
	var err error
	if job.Definition, job.Warnings, err = lang.FromNode(list, d.file.tree.origin); err != nil {
		d.file.tree.fail(err)
	}
	job.Places = lang.NewNodeLocator(list, d.file.tree.origin)
}

func (d *draft) set(step *yaml.Node, key, value string) {
	t := d.file.tree
	step.Content = append(step.Content, t.text(step, key), t.text(step, value))
}

// limit gives a step the timeout in a variable, or otherwise if the variable is not set.
func (d *draft) limit(step *yaml.Node, job *Job, variable, otherwise string) {
	limit := cmp.Or(valueOf(job.Variables, variable), otherwise)
	if limit == "" {
		return
	}
	if took, err := time.ParseDuration(limit); err != nil || took <= 0 {
		d.file.tree.failf(step, "the variable %s must be a time above 0, such as 90s, 5m or 1h30m", variable)
	}
	d.set(step, "timeout", limit)
}

// lines returns the lines of a script: a text, or a list of texts.
func (d *draft) lines(key string, n *yaml.Node) (all []string) {
	if n == nil {
		return nil
	}
	for _, line := range d.file.tree.flat(key, n, 1) { // in a script GitLab counts the outermost list, too
		if line.Kind != yaml.ScalarNode || line.ShortTag() != tagText {
			d.file.tree.failf(line, "a line of %s must be a text, not %s", key, describe(line))
		}
		d.unresolved(line)
		all = append(all, line.Value)
	}
	return all
}

// unresolved adds a notice if n contains $[[ ]].
func (d *draft) unresolved(n *yaml.Node) {
	const notice = "$[[ ]] stays as it is: it is about no input of its file"
	if holdsText(n, "$[[") && !slices.Contains(d.notices, notice) {
		d.notices = append(d.notices, notice)
	}
}

func holdsText(n *yaml.Node, text string) bool {
	return strings.Contains(n.Value, text) ||
		slices.ContainsFunc(n.Content, func(item *yaml.Node) bool { return holdsText(item, text) })
}

// stepsVariable has the steps that the command ci of this program runs.
const stepsVariable = "STEPS"

// fromVariable compiles a job whose script only runs the steps in the variable STEPS. For other jobs it returns false.
func (d *draft) fromVariable(parts map[string]*yaml.Node, job *Job) bool {
	if parts["before_script"] != nil || parts["setup"] != nil || parts["teardown"] != nil {
		return false
	}
	lines := d.lines("script", parts["script"])
	text := valueOf(job.Variables, stepsVariable)
	if text == "" || len(lines) != 1 || !callsUs(lines[0]) {
		return false
	}
	var err error
	if job.Definition, err = lang.Parse(stepsVariable, []byte(text)); err != nil {
		d.file.tree.fail(err)
	}
	job.Places = lang.NewLocator(stepsVariable, []byte(text))
	job.Variables = slices.DeleteFunc(job.Variables, func(v Variable) bool { return v.Name == stepsVariable })
	job.Script, job.MayFail = false, nil
	if parts["after_script"] != nil {
		d.notices = append(d.notices, "after_script does not run in a job that runs STEPS; add a step with when: always")
	}
	return true
}

// callsUs reports whether a line calls the ci command of this program: /path/to/step-runner ci.
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
