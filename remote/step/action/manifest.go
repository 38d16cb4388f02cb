package action

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/internal/yamltree"
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
	r, root := load(name, text)
	m := &manifest{text: text, preIf: "always()", postIf: "always()"}
	var runs *yaml.Node
	for _, p := range r.Mapping(root, "the action") {
		switch p.Key {
		case "inputs":
			m.inputs = r.inputs(p.Value)
		case "outputs":
			for _, o := range r.Mapping(p.Value, "outputs") {
				out := setting{name: o.Key, line: o.At.Line}
				for _, part := range r.Mapping(o.Value, "the output "+o.Key) {
					if part.Key == "value" {
						out.text = r.text(part.Value, "value")
					}
				}
				m.outputs = append(m.outputs, out)
			}
		case "runs":
			runs = p.Value
		}
	}
	if r.Err == nil && runs == nil {
		r.Failf(root, "runs is missing")
	}
	if r.Err == nil {
		m.runs(r, runs)
	}
	if r.Err != nil {
		return nil, r.Err
	}
	return m, nil
}

func (r *reader) inputs(n *yaml.Node) []input {
	var list []input
	for _, p := range r.Mapping(n, "inputs") {
		in := input{name: p.Key, line: p.At.Line}
		for _, part := range r.Mapping(p.Value, "the input "+p.Key) {
			switch part.Key {
			case "default":
				in.value = r.text(part.Value, "default")
			case "required":
				in.required = r.text(part.Value, "required") == "true"
			case "deprecationMessage":
				in.deprecated = r.text(part.Value, "deprecationMessage")
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
	for _, p := range r.Mapping(n, "runs") {
		at[p.Key] = p.Value
		switch p.Key {
		case "using":
			m.using = strings.ToLower(r.text(p.Value, "using"))
		case "main", "entrypoint":
			m.main = r.text(p.Value, p.Key)
		case "pre", "pre-entrypoint":
			m.pre = r.text(p.Value, p.Key)
		case "post", "post-entrypoint":
			m.post = r.text(p.Value, p.Key)
		case "pre-if":
			m.preIf = r.text(p.Value, p.Key)
		case "post-if":
			m.postIf = r.text(p.Value, p.Key)
		case "image":
			m.image = r.text(p.Value, p.Key)
		case "args":
			m.args = []string{}
			for _, arg := range r.List(p.Value, "args") {
				m.args = append(m.args, r.text(arg, "an argument"))
			}
		case "env":
			m.env = r.settings(p.Value, "env")
		}
	}
	switch version := nodeVersion().FindStringSubmatch(m.using); {
	case r.Err != nil:
	case m.using == "composite":
		if at["steps"] == nil {
			r.Failf(n, "steps is missing; a composite action has some")
			return
		}
		m.steps, m.pre, m.post = r.steps(at["steps"], false), "", ""
		r.expressions(knownNames(false), "output ", m.outputs)
	case m.using == "docker":
		if m.image == "" {
			r.Failf(n, "image is missing; a docker action has Dockerfile or docker://image")
		}
	case version != nil:
		m.using, m.asks = "node", version[1]
		if m.main == "" {
			r.Failf(n, "main is missing; an action for node has the file that it runs")
		}
	case m.using == "":
		r.Failf(n, "using is missing; write composite, docker or node24")
	default:
		r.Failf(at["using"], "using %.64q is not supported; it is composite, docker, node12, node16, node20 or "+
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
	if n == nil {
		return nil
	}
	var list []*step
	ids := map[string]bool{}
	for _, item := range r.List(n, "steps") {
		s := &step{line: item.Line, saved: map[string]string{}}
		given := map[string]*yaml.Node{}
		for _, p := range r.Known(r.Mapping(item, "a step"), "a step", stepKeys) {
			given[p.Key] = p.Value
			s.set(r, p)
		}
		switch {
		case r.Err != nil:
			return nil
		case given["run"] == nil && given["uses"] == nil:
			r.Failf(item, "the step has neither run nor uses")
		case given["run"] != nil && given["uses"] != nil:
			r.Failf(given["uses"], "the step has both run and uses; it has one of them")
		case given["run"] != nil && given["shell"] == nil && !isWorkflow:
			r.Failf(given["run"], "shell is missing; a step with run in a composite action names its shell, such as bash")
		case given["run"] != nil && given["with"] != nil:
			r.Failf(given["with"], "with is for uses; pass values to a script in env")
		case s.id != "" && ids[strings.ToLower(s.id)]:
			r.Failf(given["id"], "the id %.64q is taken", s.id)
		}
		if given["uses"] != nil {
			if _, err := lang.ParseAction(s.uses); err != nil {
				r.Failf(given["uses"], "uses: %v", err)
			}
		}
		s.check(r, isWorkflow)
		ids[strings.ToLower(s.id)] = true
		list = append(list, s)
	}
	return list
}

// set reads an entry of a step.
func (s *step) set(r *reader, p yamltree.Entry) {
	switch p.Key {
	case "with":
		s.with = r.settings(p.Value, p.Key)
		return
	case "env":
		s.env = r.settings(p.Value, p.Key)
		return
	case "if":
		s.conditionLine = p.Value.Line
	}
	*map[string]*string{
		"id": &s.id, "name": &s.name, "if": &s.condition, "uses": &s.uses, "run": &s.run, "shell": &s.shell,
		"working-directory": &s.dir, "continue-on-error": &s.mayFail, "timeout-minutes": &s.timeout,
	}[p.Key] = r.text(p.Value, p.Key)
}
