package action

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/annotation"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// running is a running step, or a running stage of a step.
type running struct {
	*list
	spec    *step
	res     *engine.StepResult // the result of the step
	env     map[string]string  // of the step
	given   map[string]string  // inputs of its action
	literal bool               // use the inputs unchanged: the engine's own language has evaluated their expressions
	early   bool               // this is the pre stage, before the first step of the job
	limit   time.Time
	label   string
	outputs map[string]string

	now *engine.StepResult // the result of the part that runs: the step, or one of its stages

	shows bool // debug messages are shown

	mu   sync.Mutex // guards the following, which the streams of the process use
	errs []error    // of commands
	size int        // of the values that commands have set, in bytes
}

// maxAnnotations bounds the annotations that a step keeps.
const maxAnnotations = 100

const (
	// maxWarnings and maxErrors bound the warnings and errors from commands that a step keeps.
	maxWarnings, maxErrors = 20, 20
	// maxValues bounds the values that commands set, in bytes.
	maxValues = 8 << 20
	// valueSize is the estimated size of a value beside its texts, in bytes.
	valueSize = 64
)

func addWarning(res *engine.StepResult, text string) {
	if len(res.Warnings) < maxWarnings {
		res.Warnings = append(res.Warnings, text)
	}
}

// process is a process of a step.
type process struct {
	proc.Command
	files  files
	script bool
	with   values // inputs, for a trace
}

// exec runs a process with the variables of GitHub's runner and env, and reads its command files.
func (x *running) exec(ctx context.Context, p process, env map[string]string) engine.Result {
	defer x.call.RemoveFiles(p.files.name, fileKinds)
	x.now.Status = engine.Running
	x.shows = x.debug()
	stdout := x.scanner(x.call.Place.Stdout)
	stderr := stdout // in the order in which the step writes
	if x.marks == "" {
		stderr = x.scanner(x.call.Place.Stderr)
	}
	p.Stdout = stdout
	if p.Stderr == nil {
		p.Stderr = stderr
	} else {
		p.Stderr = io.MultiWriter(stderr, p.Stderr)
	}
	x.mu.Lock()
	x.errs = nil
	x.mu.Unlock()
	variables, state, left := maps.Clone(x.global), maps.Clone(x.spec.saved), x.left()
	o := x.call.Exec(ctx, x.now, p.Command, env, x.limit, x.label)
	closeErr := errors.Join(stdout.Close(), stderr.Close())
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stopped = "" // stop-commands of one step has no effect on the next
	err := errors.Join(x.collect(p.files), errors.Join(x.errs...), closeErr)
	if tooMuch := x.call.Keep(x.left() - left); tooMuch != nil {
		x.global, x.spec.saved = variables, state
		err = errors.Join(err, tooMuch)
	}
	if err != nil && o.Status == engine.Success {
		o = engine.Failed(errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return o
}

// left returns the size of the variables and of the saved state that processes have set, in bytes.
func (x *running) left() (n int) {
	for _, texts := range []map[string]string{x.global, x.spec.saved} {
		for name, text := range texts {
			n += valueSize + len(name) + len(text)
		}
	}
	return n
}

// collect reads the command files, also after a failure. The caller holds mu.
func (x *running) collect(f files) error {
	var errs []error
	outputs, err := f.entries("output")
	errs = append(errs, err)
	for _, e := range outputs {
		x.outputs[e.name] = e.text
	}
	states, err := f.entries("state")
	errs = append(errs, err)
	for _, e := range states {
		x.spec.saved[e.name] = e.text
	}
	env, err := f.entries("env")
	errs = append(errs, err)
	for _, e := range env {
		if err := x.setEnv(e.name, e.text); err != nil {
			x.annotate(annotation.Annotation{Level: "error", Message: err.Error()})
			if _, err := io.WriteString(x.call.Place.Stderr, "Error: "+err.Error()+"\n"); err != nil {
				errs = append(errs, err)
			}
		}
	}
	paths, err := f.read("path")
	errs = append(errs, err)
	for line := range strings.Lines(paths) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.ContainsRune(line, 0) {
			continue
		}
		if err := x.addPath(strings.Clone(line)); err != nil { // else it keeps the whole file in memory
			errs = append(errs, fmt.Errorf("unable to process file command 'path' successfully: %w", err))
			break
		}
	}
	summary, err := f.read("step_summary")
	switch {
	case err != nil:
		addWarning(x.now, "the summary is left out: "+err.Error())
	case len(summary) > maxSummary:
		addWarning(x.now, fmt.Sprintf("the summary is left out: it has %d bytes, the limit is %d", len(summary), maxSummary))
	default:
		x.now.Summary += summary
	}
	errs = append(errs, x.setOutputs())
	return errors.Join(errs...)
}

// setOutputs makes the outputs of the step.
func (x *running) setOutputs() error {
	if len(x.outputs) > maxEntries {
		return fmt.Errorf("the step has more than %d outputs", maxEntries)
	}
	out, err := newValues(x.outputs, "output %.64q: %w")
	if err == nil {
		x.res.Outputs = out
	}
	return err
}

// scanner returns a scanner for an output stream of the step.
func (x *running) scanner(to io.Writer) *scanner {
	return &scanner{
		to: to, command: x.command,
		matches: func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			return len(x.matchers) > 0
		},
		match: x.matchLine,
	}
}

// matchLine passes a line to the problem matchers.
func (x *running) matchLine(line string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	line = colours().ReplaceAllString(line, "")
	for _, m := range x.matchers {
		if a := m.match(line); a != nil {
			x.annotate(*a)
		}
	}
}

// annotate keeps an annotation. The caller holds mu.
func (x *running) annotate(a annotation.Annotation) {
	if len(x.now.Annotations) < maxAnnotations {
		a.Level, a.Message, a.Title, a.File = clip(a.Level), clip(a.Message), clip(a.Title), clip(a.File)
		x.now.Annotations = append(x.now.Annotations, a)
	}
}

// clip bounds a text of an annotation. The result does not keep the line in memory from which the text comes.
func clip(text string) string {
	const most = 4 << 10
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "..."
	}
	return strings.Clone(text)
}

// command carries out a line of output if it is a command. It returns the text to show in place of the line.
func (x *running) command(line string) (string, bool) {
	c, ok := parseCommand(line)
	if !ok {
		return "", false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stopped != "" {
		if c.name == strings.ToLower(x.stopped) {
			x.stopped = ""
			return "", true
		}
		return "", false
	}
	if !slices.Contains(commandNames, c.name) {
		return "", false
	}
	text, err := x.obey(c)
	if err != nil {
		if len(x.errs) < maxErrors {
			x.errs = append(x.errs, fmt.Errorf("the command %s: %w", c.name, err))
		}
		text = "Error: " + err.Error()
	}
	return text, true
}

// oidcVariable begins the names of variables without which the clients of the OIDC service fail.
const oidcVariable = "ACTIONS_ID_TOKEN_REQUEST_"

// obey carries out a command. The caller holds mu.
func (x *running) obey(c command) (string, error) {
	name := strings.ToValidUTF8(c.properties["name"], "\uFFFD")
	switch c.name {
	case "set-output", "save-state", "set-env", "add-path":
		if x.size += len(name) + len(c.data); x.size > maxValues {
			return "", fmt.Errorf("the job's values have more than %d bytes in all", maxValues)
		}
	}
	switch c.name {
	case "set-output", "save-state":
		to := x.outputs
		if c.name == "save-state" {
			to = x.spec.saved
		}
		if name == "" {
			return "", errors.New("the property name is missing")
		}
		if _, there := to[name]; !there && len(to) >= maxEntries {
			return "", fmt.Errorf("there are more than %d values", maxEntries)
		}
		to[name] = c.data
	case "add-mask":
		if strings.TrimSpace(c.data) == "" {
			return "", nil
		}
		if err := x.call.Hide(c.data); err != nil {
			return "", fmt.Errorf("mask the value: %w", err)
		}
		if x.call.Masked(c.data) == c.data {
			addWarning(x.now, "a value of add-mask is too short to be masked: so short a text is everywhere")
		}
		return "", nil
	case "set-env", "add-path":
		return x.unsecure(c, name)
	case "group":
		return c.data, nil
	case "debug":
		if x.shows {
			return "Debug: " + c.data, nil
		}
	case "notice", "warning", "error":
		a := annotation.Annotation{Level: c.name, Message: c.data, Title: c.properties["title"], File: c.properties["file"]}
		for key, to := range map[string]*int{
			"line": &a.Line, "endline": &a.EndLine, "col": &a.Column, "endcolumn": &a.EndColumn,
		} {
			*to, _ = strconv.Atoi(c.properties[key])
		}
		x.annotate(a)
		if strings.Contains(c.data, oidcVariable) {
			addWarning(x.now, ignored["id-token"])
		}
		return strings.ToUpper(c.name[:1]) + c.name[1:] + ": " + c.data, nil
	case "add-matcher":
		return x.addMatchers(c.data), nil
	case "remove-matcher":
		owner := c.properties["owner"]
		x.matchers = slices.DeleteFunc(x.matchers, func(m *matcher) bool { return m.owner == owner })
	case "stop-commands":
		if c.data == "" || slices.Contains(commandNames, strings.ToLower(c.data)) {
			return "", errors.New("the token is empty, or the name of a command")
		}
		x.stopped = c.data
	}
	return "", nil
}

// unsecure refuses the commands that foreign text in the output could abuse, unless the job allows them.
func (x *running) unsecure(c command, name string) (string, error) {
	if x.environ(x.list.env, x.env)["ACTIONS_ALLOW_UNSECURE_COMMANDS"] != "true" {
		return "", fmt.Errorf("the `%s` command is disabled; write to the file in GITHUB_ENV or GITHUB_PATH", c.name)
	}
	if c.name == "add-path" {
		return "", x.addPath(c.data)
	}
	if name == "" {
		return "", errors.New("the property name is missing")
	}
	return "", x.setEnv(name, c.data)
}

// addMatchers adds the problem matchers of a file.
func (x *running) addMatchers(path string) string {
	list, err := readMatchers(x.call.Open, x.work(), path)
	if err == nil && len(x.matchers)+len(list) > maxMatchers {
		err = fmt.Errorf("there are more than %d", maxMatchers)
	}
	if err != nil {
		addWarning(x.now, fmt.Sprintf("the problem matchers in %.160q are left out: %v", path, err))
		return ""
	}
	for _, m := range list {
		x.matchers = slices.DeleteFunc(x.matchers, func(old *matcher) bool { return old.owner == m.owner })
		x.matchers = append(x.matchers, m)
	}
	return ""
}

// variables returns the runner's variables for a process whose files are f.
func (x *running) variables(f files, action string) map[string]string {
	env := map[string]string{"GITHUB_ACTIONS": "true", "GITHUB_ACTION": action}
	for key, v := range x.github {
		if key != "event" {
			env["GITHUB_"+strings.ToUpper(key)] = v.Text()
		}
	}
	for key, v := range x.runner() {
		env["RUNNER_"+strings.ToUpper(key)] = v
	}
	for _, kind := range fileKinds {
		env["GITHUB_"+strings.ToUpper(kind)] = f.path(kind)
	}
	if a := x.action; a != nil {
		env["GITHUB_ACTION_PATH"] = a.dir
		env["GITHUB_ACTION_REF"], env["GITHUB_ACTION_REPOSITORY"] = a.ref.GetRev(), a.ref.GetRepository()
	}
	return env
}

// environment returns the environment of a process of the step. Variables of the step override those of earlier steps,
// and the runner's variables override both.
func (x *running) environment(f files, more ...map[string]string) map[string]string {
	env := x.environ(append([]map[string]string{x.list.env, x.env}, more...)...)
	maps.Copy(env, x.variables(f, actionName(x.spec)))
	setCI(env)
	return env
}

// setCI sets CI, the one variable of the runner that a workflow can replace, for example by CI: false.
func setCI(env map[string]string) {
	if _, there := env["CI"]; !there {
		env["CI"] = "true"
	}
}

// actionName returns the value of GITHUB_ACTION.
func actionName(s *step) string {
	switch {
	case s.id != "":
		return s.id
	case s.loaded != nil && s.loaded.ref.GetRepository() != "":
		return "__" + strings.ReplaceAll(s.loaded.ref.GetRepository(), "/", "_")
	case s.loaded != nil:
		return "__self"
	default:
		return "__run"
	}
}

// begin reports that a part runs: a process, or a list of steps.
func (x *running) begin(res *engine.StepResult, p process, kind engine.Kind) error {
	x.now = res
	def := &pb.Definition{Type: pb.DefinitionType_exec}
	if kind == engine.Sequence {
		def.Type = pb.DefinitionType_steps
	}
	env, err := newValues(x.env, "env %.64q: %w")
	if err != nil {
		return err
	}
	return x.call.Begin(res, kind, engine.Prepared{
		Definition: def, Script: p.script, Inputs: p.with, Env: []values{env}, FilesDir: p.files.dir(),
	})
}
