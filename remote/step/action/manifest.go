package action

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// manifest is an action.yml.
type manifest struct {
	file string // its name
	text []byte

	inputs  []input
	outputs []setting

	using           string // composite, node or docker
	main, pre, post string // of a node or docker action: the program of each stage; pre and post may be missing
	preIf, postIf   string
	steps           []*step
	image           string
	args            []string // nil if the key is not there
	env             []setting
	asks            string // the version of node that it asks for
}

// input is an input of an action.
type input struct {
	name, value string // value is the default
	required    bool
	deprecated  string // the advice if it should not be used any more
	line        int
}

// manifestFiles are the names of files that describe an action. The first one is preferred.
var manifestFiles = []string{"action.yml", "action.yaml"}

// readManifest reads the description of the action in the absolute directory dir. Errors call the action name.
func readManifest(open boundedfile.Opener, dir, name string) (*manifest, error) {
	for _, file := range manifestFiles {
		text, err := boundedfile.ReadBy(open, filepath.Join(dir, file), lang.MaxText)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the action %s: %w", name, err)
		}
		m, err := parseManifest(strings.TrimSuffix(name, "/")+"/"+file, text)
		if m != nil {
			m.file = file
		}
		return m, err
	}
	if text, err := boundedfile.ReadBy(open, filepath.Join(dir, "Dockerfile"), lang.MaxText); err == nil {
		return &manifest{file: "Dockerfile", text: text, using: "docker", image: "Dockerfile"}, nil
	}
	return nil, fmt.Errorf("find the action %s: it has no action.yml, action.yaml or Dockerfile: %w", name, fs.ErrNotExist)
}

// parseManifest reads an action.yml. Errors call it name.
func parseManifest(name string, text []byte) (*manifest, error) {
	r := &reader{name: name}
	m := &manifest{text: text, preIf: "always()", postIf: "always()"}
	root := r.load(text)
	var runs *yaml.Node
	for _, p := range r.pairs(root, "the action") {
		switch p.key {
		case "inputs":
			m.inputs = r.inputs(p.value)
		case "outputs":
			for _, o := range r.pairs(p.value, "outputs") {
				out := setting{name: o.key, line: o.at.Line}
				for _, part := range r.pairs(o.value, "the output "+o.key) {
					if part.key == "value" {
						out.text = r.text(part.value, "value")
					}
				}
				m.outputs = append(m.outputs, out)
			}
		case "runs":
			runs = p.value
		}
	}
	if r.err == nil && runs == nil {
		r.fail(root, "runs is missing")
	}
	if r.err == nil {
		m.runs(r, runs)
	}
	if r.err != nil {
		return nil, r.err
	}
	return m, nil
}

func (r *reader) inputs(n *yaml.Node) []input {
	var list []input
	for _, p := range r.pairs(n, "inputs") {
		in := input{name: p.key, line: p.at.Line}
		for _, part := range r.pairs(p.value, "the input "+p.key) {
			switch part.key {
			case "default":
				in.value = r.text(part.value, "default")
			case "required":
				in.required = r.text(part.value, "required") == "true"
			case "deprecationMessage":
				in.deprecated = r.text(part.value, "deprecationMessage")
			}
		}
		list = append(list, in)
	}
	return list
}

// nodeVersion matches the values of using for node.
var nodeVersion = lazyregexp.New(`^node(12|16|20|24)$`)

// runs reads the part runs, which says how the action runs.
func (m *manifest) runs(r *reader, n *yaml.Node) {
	at := map[string]*yaml.Node{}
	for _, p := range r.pairs(n, "runs") {
		at[p.key] = p.value
		switch p.key {
		case "using":
			m.using = strings.ToLower(r.text(p.value, "using"))
		case "main", "entrypoint":
			m.main = r.text(p.value, p.key)
		case "pre", "pre-entrypoint":
			m.pre = r.text(p.value, p.key)
		case "post", "post-entrypoint":
			m.post = r.text(p.value, p.key)
		case "pre-if":
			m.preIf = r.text(p.value, p.key)
		case "post-if":
			m.postIf = r.text(p.value, p.key)
		case "image":
			m.image = r.text(p.value, p.key)
		case "args":
			m.args = []string{}
			for _, arg := range r.items(p.value, "args") {
				m.args = append(m.args, r.text(arg, "an argument"))
			}
		case "env":
			m.env = r.settings(p.value, "env")
		}
	}
	switch version := nodeVersion().FindStringSubmatch(m.using); {
	case r.err != nil:
	case m.using == "composite":
		if at["steps"] == nil {
			r.fail(n, "steps is missing; a composite action has some")
			return
		}
		m.steps, m.pre, m.post = r.steps(at["steps"], false), "", ""
		r.expressions(knownNames(false), "output ", m.outputs)
	case m.using == "docker":
		if m.image == "" {
			r.fail(n, "image is missing; a docker action has Dockerfile or docker://image")
		}
	case version != nil:
		m.using, m.asks = "node", version[1]
		if m.main == "" {
			r.fail(n, "main is missing; an action for node has the file that it runs")
		}
	case m.using == "":
		r.fail(n, "using is missing; write composite, docker or node24")
	default:
		r.fail(at["using"], "using %.64q is not supported; it is composite, docker, node12, node16, node20 or "+
			"node24", m.using)
	}
}

// step is a step of a composite action or of a workflow's job.
type step struct {
	line                  int
	id, name, condition   string
	uses, run, shell, dir string
	with, env             []setting
	mayFail, timeout      string // continue-on-error and timeout-minutes
	loaded                *loaded
	saved                 map[string]string // state that its stages have saved for later ones
	post                  *running          // has the post stage; nil before the first stage of an action that has one
	conditionLine         int
}

// stepKeys are the keys that a step may have.
var stepKeys = []string{
	"id", "name", "if", "uses", "run", "shell", "with", "env", "working-directory", "continue-on-error", "timeout-minutes",
}

// steps reads a list of steps. In a workflow the shell may be missing.
func (r *reader) steps(n *yaml.Node, isWorkflow bool) []*step {
	var list []*step
	ids := map[string]bool{}
	for _, item := range r.items(n, "steps") {
		s := &step{line: item.Line, saved: map[string]string{}}
		given := map[string]*yaml.Node{}
		for _, p := range r.pairs(item, "a step") {
			if !slices.Contains(stepKeys, p.key) {
				r.fail(p.at, "unknown key %.64q; a step has %s", p.key, strings.Join(stepKeys, ", "))
				return nil
			}
			given[p.key] = p.value
			s.set(r, p)
		}
		switch {
		case r.err != nil:
			return nil
		case given["run"] == nil && given["uses"] == nil:
			r.fail(item, "the step has neither run nor uses")
		case given["run"] != nil && given["uses"] != nil:
			r.fail(given["uses"], "the step has both run and uses; it has one of them")
		case given["run"] != nil && given["shell"] == nil && !isWorkflow:
			r.fail(given["run"], "shell is missing; a step with run in a composite action names its shell, such as bash")
		case given["run"] != nil && given["with"] != nil:
			r.fail(given["with"], "with is for uses; pass values to a script in env")
		case s.id != "" && ids[strings.ToLower(s.id)]:
			r.fail(given["id"], "the id %.64q is taken", s.id)
		}
		if given["uses"] != nil {
			if _, err := lang.ParseAction(s.uses); err != nil {
				r.fail(given["uses"], "uses: %v", err)
			}
		}
		s.check(r, isWorkflow)
		ids[strings.ToLower(s.id)] = true
		list = append(list, s)
	}
	return list
}

// set reads an entry of a step.
func (s *step) set(r *reader, p pair) {
	switch p.key {
	case "with":
		s.with = r.settings(p.value, p.key)
		return
	case "env":
		s.env = r.settings(p.value, p.key)
		return
	case "if":
		s.conditionLine = p.value.Line
	}
	*map[string]*string{
		"id": &s.id, "name": &s.name, "if": &s.condition, "uses": &s.uses, "run": &s.run, "shell": &s.shell,
		"working-directory": &s.dir, "continue-on-error": &s.mayFail, "timeout-minutes": &s.timeout,
	}[p.key] = r.text(p.value, p.key)
}
