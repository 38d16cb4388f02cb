package place

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// The keys of a job that describe its container, and the keys in them. Their meaning is that of a .gitlab-ci.yml.
const (
	imageKey    = "image"
	servicesKey = "services"
)

// FromJob reads the keys image and services of a job in YAML, which the step runner does not know. rest is the text
// without them, with all lines at their places. spec has an image, services, or both; it is nil if the job has neither.
// name is the text's name in errors. A text that is not YAML in UTF-8 comes back as it is: its next reader names the
// fault.
func FromJob(name string, text []byte) (rest []byte, spec *Spec, err error) {
	top := lastDocument(text)
	if top == nil || top.Kind != yaml.MappingNode {
		return text, nil, nil
	}
	r := &jobReader{name: name, spec: &Spec{}}
	lines := bytes.SplitAfter(text, []byte("\n"))
	found := false
	for i := 0; i+1 < len(top.Content); i += 2 {
		key := top.Content[i]
		switch key.Value {
		case imageKey:
			r.image(top.Content[i+1])
		case servicesKey:
			r.services(top.Content[i+1])
		default:
			continue
		}
		if found = true; top.Style&yaml.FlowStyle != 0 {
			r.fail(key, "%s: write each key of the job on a line of its own", key.Value)
			break
		}
		if c := otherBreak(text); c != "" {
			r.fail(top, "the text has the character %+q, which YAML takes for the end of a line: remove it", c)
			break
		}
		end := len(lines)
		if i+2 < len(top.Content) {
			end = top.Content[i+2].Line - 1
		}
		for at := key.Line - 1; at < end; at++ {
			if bytes.HasSuffix(lines[at], []byte("\n")) {
				lines[at] = []byte("\n")
			} else {
				lines[at] = nil
			}
		}
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	if !found {
		return text, nil, nil
	}
	return bytes.Join(lines, nil), r.spec, nil
}

// otherBreak returns a line break of YAML 1.1 in a text that does not end a line for other programs, or "".
func otherBreak(text []byte) string {
	for _, c := range []string{"\u0085", "\u2028", "\u2029"} {
		if bytes.Contains(text, []byte(c)) {
			return c
		}
	}
	if bytes.Count(text, []byte("\r")) > bytes.Count(text, []byte("\r\n")) {
		return "\r"
	}
	return ""
}

// lastDocument returns the top of the last document of a text, or nil.
func lastDocument(text []byte) *yaml.Node {
	if !utf8.Valid(text) || !bytes.Contains(text, []byte(imageKey)) && !bytes.Contains(text, []byte(servicesKey)) {
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var last *yaml.Node
	for {
		var doc yaml.Node
		switch err := decoder.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return last
		case err != nil || doc.Kind != yaml.DocumentNode || len(doc.Content) != 1:
			return nil
		}
		last = doc.Content[0]
	}
}

// jobReader reads a job's image and services into spec. It keeps the first mistake.
type jobReader struct {
	name string
	spec *Spec
	err  error
}

func (r *jobReader) fail(n *yaml.Node, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s:%d:%d: %s", r.name, n.Line, n.Column, fmt.Sprintf(format, args...))
	}
}

// image reads an image: its name, or a mapping.
func (r *jobReader) image(n *yaml.Node) {
	s := r.spec
	if n = r.value(n); n.Kind != yaml.MappingNode {
		s.Image = r.text(n, imageKey)
	} else {
		r.each(n, imageKey, map[string]func(*yaml.Node){
			"name":        func(n *yaml.Node) { s.Image = r.text(n, "name") },
			"entrypoint":  func(n *yaml.Node) { s.Entrypoint = noEmpty(r.texts(n, "entrypoint")) },
			"pull_policy": func(n *yaml.Node) { s.Pull = r.policy(n) },
			"docker": func(n *yaml.Node) {
				r.each(n, "docker", map[string]func(*yaml.Node){
					"user":     func(n *yaml.Node) { s.User = r.text(n, "user") },
					"platform": func(n *yaml.Node) { s.Platform = r.text(n, "platform") },
				})
			},
		})
	}
	if s.Image == "" {
		r.fail(n, "the image has no name")
	}
}

// services reads a list of services: of each its image's name, or a mapping.
func (r *jobReader) services(n *yaml.Node) {
	if n = r.value(n); n.Kind != yaml.SequenceNode {
		r.fail(n, "services must be a list of images")
		return
	}
	for _, n := range n.Content {
		s := Service{}
		if n = r.value(n); n.Kind != yaml.MappingNode {
			s.Image = r.text(n, "a service")
		} else {
			r.each(n, "a service", map[string]func(*yaml.Node){
				"name":       func(n *yaml.Node) { s.Image = r.text(n, "name") },
				"alias":      func(n *yaml.Node) { s.Alias = r.text(n, "alias") },
				"entrypoint": func(n *yaml.Node) { s.Entrypoint = r.texts(n, "entrypoint") },
				"command":    func(n *yaml.Node) { s.Command = r.texts(n, "command") },
				"variables":  func(n *yaml.Node) { s.Env = r.env(n) },
			})
		}
		if s.Image == "" {
			r.fail(n, "a service has no image; write its name")
		}
		r.spec.Services = append(r.spec.Services, s)
	}
}

// noEmpty drops the empty program of entrypoint: [""], which stands for an image without one: that of the steps is not
// run in any case.
func noEmpty(words []string) []string {
	if len(words) == 1 && words[0] == "" {
		return nil
	}
	return words
}

// policy reads a pull policy: a word, or a list with one.
func (r *jobReader) policy(n *yaml.Node) Pull {
	if n = r.value(n); n.Kind == yaml.SequenceNode && len(n.Content) == 1 {
		n = r.value(n.Content[0])
	}
	p := Pull(r.text(n, "pull_policy"))
	if !slices.Contains(pulls, p) {
		r.fail(n, "pull_policy %.80q: use one of %s, %s and %s", p, PullIfNotPresent, PullAlways, PullNever)
	}
	return p
}

// env reads variables as KEY=VALUE.
func (r *jobReader) env(n *yaml.Node) (env []string) {
	if n = r.value(n); n.Kind != yaml.MappingNode {
		r.fail(n, "variables must be a mapping (NAME: value)")
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		env = append(env, r.text(n.Content[i], "variables")+"="+r.text(n.Content[i+1], "variables"))
	}
	return env
}

// each calls the function of each key of the mapping n. Errors name the mapping by the text in what.
func (r *jobReader) each(n *yaml.Node, what string, read map[string]func(*yaml.Node)) {
	if n = r.value(n); n.Kind != yaml.MappingNode {
		r.fail(n, "%s must be a mapping", what)
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if set := read[key.Value]; set != nil {
			set(n.Content[i+1])
			continue
		}
		known := make([]string, 0, len(read))
		for name := range read {
			known = append(known, name)
		}
		slices.Sort(known)
		r.fail(key, "unknown key %.80q of %s; it has %s", key.Value, what, strings.Join(known, ", "))
	}
}

// texts reads a list of texts, or one text.
func (r *jobReader) texts(n *yaml.Node, what string) (all []string) {
	if n = r.value(n); n.Kind != yaml.SequenceNode {
		return []string{r.text(n, what)}
	}
	for _, n := range n.Content {
		all = append(all, r.text(n, what))
	}
	return all
}

func (r *jobReader) text(n *yaml.Node, what string) string {
	if n = r.value(n); n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		r.fail(n, "%s must be a text", what)
		return ""
	}
	return n.Value
}

// value returns the node that n stands for.
func (*jobReader) value(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}
