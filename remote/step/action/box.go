package action

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// box is the container of a workflow's job, or of one of its services. Its texts can have expressions.
type box struct {
	key       string // container, the name of a service, or empty if image has the expression of all services
	isService bool
	line      int
	image     setting
	env       []setting
	options   setting      // flags of docker create
	ports     []setting    // of a service
	ignored   []*yaml.Node // keys that have no effect
}

// boxKeys are the keys of a container and of a service that have no effect, with the reasons.
var boxKeys = map[string]string{
	"command":     "that of the image is used",
	"credentials": "the login for a registry is that of this user's ~/.docker/config.json",
	"entrypoint":  "that of the image is used",
	"ports":       "all containers of the job are in one network: reach a service by its name, at the port of its image",
	"volumes":     "--volume gives the job directories of this machine",
}

// box reads the container of a job, or a service: the name of an image, or a mapping.
func (r *reader) box(p yamltree.Entry, isService bool) box {
	b := box{key: p.Key, isService: isService, line: p.At.Line}
	if r.Err != nil {
		return b
	}
	if n := r.Value(p.Value); n.Kind == yaml.ScalarNode {
		b.image = setting{"image", r.text(n, p.Key), p.Value.Line}
		return b
	}
	for _, part := range r.Mapping(p.Value, p.Key) {
		switch part.Key {
		case "image":
			b.image = setting{part.Key, r.text(part.Value, part.Key), part.Value.Line}
		case "env":
			b.env = r.settings(part.Value, part.Key)
		case "options":
			b.options = setting{part.Key, r.text(part.Value, part.Key), part.Value.Line}
		default:
			if n := r.Value(part.Value); part.Key == "ports" && n.Kind == yaml.SequenceNode {
				for _, port := range n.Content {
					b.ports = append(b.ports, setting{part.Key, r.text(port, part.Key), port.Line})
				}
			}
			b.ignored = append(b.ignored, part.At)
		}
	}
	return b
}

// label begins errors about a text of b.
func (b box) label() string {
	if b.key == "" {
		return ""
	}
	return b.key + ": "
}

// usesEnv reports whether the texts of b may have the context env.
func (b box) usesEnv() bool {
	return slices.ContainsFunc(append([]setting{b.image, b.options}, b.env...), func(s setting) bool {
		return strings.Contains(strings.ToLower(s.text), "env")
	})
}

// boxNotes returns the notes about the job's container and its services.
func (j *Job) boxNotes(inContainer bool) (notes []string) {
	for _, b := range j.boxes {
		if !inContainer {
			what := "container has no effect"
			switch {
			case b.key == "":
				what = "the services are not started"
			case b.isService:
				what = "the service " + b.key + " is not started"
			}
			notes = append(notes, fmt.Sprintf("%s:%d: %.100s: --in-image runs the job in its container, beside "+
				"its services", j.file, b.line, what))
			continue
		}
		for _, key := range b.ignored {
			why, known := boxKeys[key.Value]
			if !known {
				why = "unknown key"
			}
			notes = append(notes,
				fmt.Sprintf("%s:%d: %.64s of %.64s has no effect: %s", j.file, key.Line, key.Value, b.key, why))
		}
	}
	return notes
}

// Boxes are the container of a job and its services.
type Boxes struct {
	// Text describes them as YAML, with the keys image and services of a .gitlab-ci.yml. It is empty without any.
	Text []byte
	// Env is the environment of the job's container.
	Env map[string]string
	// Services has the services with ports, for the context job: each port is reached at the name of its service.
	Services map[string]any
	// Notes are about options that have no effect.
	Notes []string
}

// Container returns the container of the job and its services. Expressions can use the values of matrix, of the
// workflow's inputs and of the context needs, the job's env, and the variables.
func (j *Job) Container(
	matrix, inputs, needs map[string]any, vars []engine.Variable,
) (made Boxes, err error) {
	l := &boxLanguage{file: j.file, scope: j.scope(matrix, inputs, vars)}
	l.scope.Values["needs"] = expression.New(needs)
	if slices.ContainsFunc(j.boxes, box.usesEnv) { // where the job runs it has more contexts
		l.scope.Values["env"] = expression.Texts(l.texts(j.env))
	}
	top := map[string]any{}
	var services []any
	made.Services = map[string]any{}
	for _, b := range j.boxes {
		for _, c := range l.containers(b) {
			image := strings.TrimPrefix(c.image, "docker://")
			if image == "" { // like GitHub, start no service without an image
				continue
			}
			o := boxOptions{isService: b.isService, env: c.env, keys: map[string]any{"name": image}}
			l.fail(b.line, o.read(c.options))
			for _, flag := range o.ignored {
				made.Notes = append(made.Notes,
					fmt.Sprintf("%s:%d: the option %.64s of %.64s has no effect", j.file, b.line, flag, c.name))
			}
			if b.isService {
				o.keys["alias"], o.keys["variables"] = c.name, c.env
				services = append(services, o.keys)
				made.Services[c.name] = map[string]any{"ports": c.ports}
			} else {
				top["image"], made.Env = o.keys, c.env
			}
		}
	}
	if services != nil {
		top["services"] = services
	}
	if err = l.err; err == nil && len(top) > 0 {
		made.Text, err = yaml.Marshal(top)
	}
	return made, err
}

// scope returns the contexts that the container of a job, and keys of the job itself, can use.
func (j *Job) scope(matrix, inputs map[string]any, vars []engine.Variable) expression.Scope {
	known, hidden, open := map[string]string{}, map[string]string{}, map[string]string{}
	for _, v := range vars {
		known[v.Key] = v.Value
		if v.Masked {
			hidden[v.Key] = v.Value
		} else {
			open[v.Key] = v.Value
		}
	}
	github := githubTexts(func(name string) string { return known[name] })
	github["token"], github["job"] = known["GITHUB_TOKEN"], j.Name
	github["workflow"] = cmp.Or(known[callerVariable], j.workflow)
	empty := expression.Object(nil)
	return expression.Scope{Values: map[string]expression.Value{
		"matrix": expression.New(matrix), "secrets": expression.Texts(hidden), "vars": expression.Texts(open),
		"github": expression.Object(githubValues(github, known["GITHUB_EVENT"])), "inputs": expression.New(inputs),
		"needs": empty, "strategy": empty,
	}}
}

// boxLanguage evaluates the texts of containers. It keeps its first error.
type boxLanguage struct {
	file  string
	scope expression.Scope
	err   error
}

// container is a box after the evaluation of its texts.
type container struct {
	name, image, options string
	env, ports           map[string]string
}

// addPort adds a port of the image, which the job reaches by that number: text is as in docker create --publish.
func (c *container) addPort(text string) {
	port, _, _ := strings.Cut(text[strings.LastIndexByte(text, ':')+1:], "/")
	if port != "" {
		c.ports[port] = port
	}
}

// containers evaluates a box: a single container, or all services.
func (l *boxLanguage) containers(b box) (list []container) {
	v := l.value(b.image)
	if b.key != "" {
		return []container{l.container(b, b.key, v)}
	}
	if kind := v.Kind(); kind != "Object" && kind != "Null" {
		l.fail(b.line, fmt.Errorf("services must be a mapping, and the value of its expression is of the kind %s", kind))
	}
	for name, service := range v.Properties() {
		list = append(list, l.container(b, name, service))
	}
	return list
}

// container returns the container that v describes: the name of its image, or a mapping. b has its other texts.
func (l *boxLanguage) container(b box, name string, v expression.Value) container {
	c := container{name: name, env: l.texts(b.env), ports: map[string]string{}, options: l.value(b.options).Text()}
	for _, port := range b.ports {
		c.addPort(l.value(port).Text())
	}
	if kind := v.Kind(); kind != "Object" {
		if kind == "Array" {
			l.fail(b.line, fmt.Errorf("%.64s must be an image or a mapping, and the value of its expression is an Array", name))
		}
		c.image = v.Text()
		return c
	}
	for key, value := range v.Properties() {
		switch key {
		case "image":
			c.image = value.Text()
		case "options":
			c.options = value.Text()
		case "ports":
			list, _ := value.Any().([]any)
			for _, port := range list {
				c.addPort(expression.New(port).Text())
			}
		case "env":
			set, err := setting{line: b.line}.evaluated(value, name+": env")
			l.fail(b.line, err)
			for _, e := range set {
				c.env[e.name] = e.text
			}
		}
	}
	return c
}

// fail keeps an error, if there is one.
func (l *boxLanguage) fail(line int, err error) {
	if err != nil && l.err == nil {
		l.err = fmt.Errorf("%s:%d: %w", l.file, line, err)
	}
}

func (l *boxLanguage) value(s setting) expression.Value {
	v, err := expression.Template(s.text, l.scope)
	if err != nil {
		l.fail(s.line, fmt.Errorf("%s: %w", s.name, err))
	}
	return v
}

func (l *boxLanguage) texts(list []setting) map[string]string {
	all := map[string]string{}
	for _, s := range list {
		set, err := s.evaluated(l.value(s), "env")
		l.fail(s.line, err)
		for _, e := range set {
			all[e.name] = e.text
		}
	}
	return all
}
