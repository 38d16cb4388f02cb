package action

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// box is the container of a workflow's job, or of one of its services. Its texts can have expressions.
type box struct {
	key       string // container, or the name of a service
	isService bool
	line      int
	image     setting
	env       []setting
	ignored   []*yaml.Node // keys that have no effect
}

// boxKeys are the keys of a container and of a service that have no effect, with the reasons.
var boxKeys = map[string]string{
	"command":     "that of the image is used",
	"credentials": "the login for a registry is that of this user's ~/.docker/config.json",
	"entrypoint":  "that of the image is used",
	"options":     "the flags of stepmux local set limits; a service is ready when its ports accept connections",
	"ports":       "all containers of the job are in one network, where a service has its name",
	"volumes":     "--volume gives the job directories of this machine",
}

// box reads the container of a job, or a service: the name of an image, or a mapping.
func (r *reader) box(p pair, isService bool) box {
	b := box{key: p.key, isService: isService, line: p.at.Line}
	if r.err != nil {
		return b
	}
	if n := r.follow(p.value); n.Kind == yaml.ScalarNode {
		b.image = setting{"image", r.text(n, p.key), p.value.Line}
		return b
	}
	for _, part := range r.pairs(p.value, p.key) {
		switch part.key {
		case "image":
			b.image = setting{part.key, r.text(part.value, part.key), part.value.Line}
		case "env":
			b.env = r.texts(part.value, part.key)
		default:
			b.ignored = append(b.ignored, part.at)
		}
	}
	return b
}

// usesEnv reports whether the texts of b may have the context env.
func (b box) usesEnv() bool {
	return slices.ContainsFunc(append([]setting{b.image}, b.env...), func(s setting) bool {
		return strings.Contains(strings.ToLower(s.text), "env")
	})
}

// boxNotes returns the notes about the job's container and its services.
func (j *Job) boxNotes(inContainer bool) (notes []string) {
	for _, b := range j.boxes {
		if !inContainer {
			what := "container has no effect"
			if b.isService {
				what = "the service " + b.key + " is not started"
			}
			notes = append(notes, fmt.Sprintf("%s:%d: %.100s: stepmux local --in-image runs the job in its container, "+
				"beside its services", j.file, b.line, what))
			continue
		}
		for _, key := range b.ignored {
			why, known := boxKeys[key.Value]
			if !known {
				why = "it is not known"
			}
			notes = append(notes,
				fmt.Sprintf("%s:%d: %.64s of %.64s has no effect: %s", j.file, key.Line, key.Value, b.key, why))
		}
	}
	return notes
}

// Container returns the container of the job and its services as YAML, with the keys image and services of a
// .gitlab-ci.yml. The text is empty if the job has neither. env is the environment of its container. Expressions can
// use the values of matrix and of the workflow's inputs, the job's env, and the variables.
func (j *Job) Container(
	matrix, inputs map[string]any, vars []engine.Variable,
) (text []byte, env map[string]string, err error) {
	l := &boxLanguage{file: j.file, scope: boxScope(matrix, inputs, vars)}
	if slices.ContainsFunc(j.boxes, box.usesEnv) { // where the job runs it has more contexts
		l.scope.Values["env"] = expression.Texts(l.texts(j.env))
	}
	top := map[string]any{}
	var services []any
	for _, b := range j.boxes {
		switch image := strings.TrimPrefix(l.text(b.image), "docker://"); {
		case image == "": // like GitHub, start no service without an image
		case b.isService:
			services = append(services, map[string]any{"name": image, "alias": b.key, "variables": l.texts(b.env)})
		default:
			top["image"], env = image, l.texts(b.env)
		}
	}
	if services != nil {
		top["services"] = services
	}
	if l.err != nil || len(top) == 0 {
		return nil, nil, l.err
	}
	if text, err = yaml.Marshal(top); err != nil {
		return nil, nil, fmt.Errorf("%s: describe the container: %w", j.file, err)
	}
	return text, env, nil
}

// boxScope returns the contexts that the container of a job can use.
func boxScope(matrix, inputs map[string]any, vars []engine.Variable) expression.Scope {
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
	github["token"] = known["GITHUB_TOKEN"]
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

func (l *boxLanguage) text(s setting) string {
	v, err := expression.Template(s.text, l.scope)
	if err != nil && l.err == nil {
		l.err = fmt.Errorf("%s:%d: %s: %w", l.file, s.line, s.name, err)
	}
	return v.Text()
}

func (l *boxLanguage) texts(list []setting) map[string]string {
	all := map[string]string{}
	for _, s := range list {
		all[s.name] = l.text(s)
	}
	return all
}
