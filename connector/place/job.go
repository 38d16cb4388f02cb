package place

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
)

// The keys of a job that describe its container, and the keys in them. Their meaning is that of a .gitlab-ci.yml.
const (
	imageKey    = "image"
	servicesKey = "services"
)

// maxJob bounds the text of a job, in bytes. It is the most that the step runner reads.
const maxJob = 16 << 20

// FromJob reads the keys image and services of a job in YAML, which the step runner does not know. rest is the text
// without them, with all lines at their places. spec has an image, services, or both; it is nil if the job has neither.
// name is the text's name in errors. A text that is not YAML in UTF-8 comes back as it is: its next reader names the
// fault.
func FromJob(name string, text []byte) (rest []byte, spec *Spec, err error) {
	if !bytes.Contains(text, []byte(imageKey)) && !bytes.Contains(text, []byte(servicesKey)) {
		return text, nil, nil
	}
	t, wrong := yamltree.Load(name, text, maxJob)
	if wrong != nil || len(t.Docs) == 0 || t.Docs[len(t.Docs)-1].Kind != yaml.MappingNode {
		return text, nil, nil //nolint:nilerr // see above
	}
	top := t.Docs[len(t.Docs)-1]
	r := &jobReader{
		Reader: yamltree.Reader{Text: t, Rules: yamltree.Rules{MaxCost: 4 * maxJob, Unquoted: true}}, spec: &Spec{},
	}
	entries := r.Mapping(top, "a job")
	lines := bytes.SplitAfter(text, []byte("\n"))
	found := false
	for i, e := range entries {
		switch e.Key {
		case imageKey:
			r.image(e.Value)
		case servicesKey:
			r.services(e.Value)
		default:
			continue
		}
		if found = true; top.Style&yaml.FlowStyle != 0 {
			r.Failf(e.At, "%s: write each key of the job on a line of its own", e.Key)
			break
		}
		if c := otherBreak(text); c != "" {
			r.Failf(top, "the text has the character %+q, which YAML takes for the end of a line: remove it", c)
			break
		}
		end := len(lines)
		if i+1 < len(entries) {
			end = entries[i+1].At.Line - 1
		}
		for at := e.At.Line - 1; at < end; at++ {
			if bytes.HasSuffix(lines[at], []byte("\n")) {
				lines[at] = []byte("\n")
			} else {
				lines[at] = nil
			}
		}
	}
	if !found { // also after a mistake in the keys of the job
		return text, nil, nil
	}
	if r.Err != nil {
		return nil, nil, r.Err
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

// jobReader reads a job's image and services into spec.
type jobReader struct {
	yamltree.Reader
	spec *Spec
}

// image reads an image: its name, or a mapping.
func (r *jobReader) image(n *yaml.Node) {
	s := r.spec
	if n = r.Value(n); n.Kind != yaml.MappingNode {
		s.Image = r.String(n, imageKey)
	} else {
		r.each(n, imageKey, map[string]func(*yaml.Node){
			"name":        func(n *yaml.Node) { s.Image = r.String(n, "name") },
			"entrypoint":  func(n *yaml.Node) { s.Entrypoint = noEmpty(r.texts(n, "entrypoint")) },
			"pull_policy": func(n *yaml.Node) { s.Pull = r.policy(n) },
			"docker": func(n *yaml.Node) {
				r.each(n, "docker", map[string]func(*yaml.Node){
					"user":     func(n *yaml.Node) { s.User = r.String(n, "user") },
					"platform": func(n *yaml.Node) { s.Platform = r.String(n, "platform") },
				})
			},
		})
	}
	if s.Image == "" {
		r.Failf(n, "the image has no name")
	}
}

// services reads a list of services: of each its image's name, or a mapping.
func (r *jobReader) services(n *yaml.Node) {
	for _, n := range r.List(n, servicesKey) {
		s := Service{}
		if n = r.Value(n); n.Kind != yaml.MappingNode {
			s.Image = r.String(n, "a service")
		} else {
			r.each(n, "a service", map[string]func(*yaml.Node){
				"name":        func(n *yaml.Node) { s.Image = r.String(n, "name") },
				"alias":       func(n *yaml.Node) { s.Alias = r.String(n, "alias") },
				"entrypoint":  func(n *yaml.Node) { s.Entrypoint = r.texts(n, "entrypoint") },
				"command":     func(n *yaml.Node) { s.Command = r.texts(n, "command") },
				"variables":   func(n *yaml.Node) { s.Env = r.env(n) },
				"healthcheck": func(n *yaml.Node) { s.Health = r.health(n) },
			})
		}
		if s.Image == "" {
			r.Failf(n, "a service has no image; write its name")
		}
		r.spec.Services = append(r.spec.Services, s)
	}
}

// health reads a health check, with the keys that it has in a Compose file.
func (r *jobReader) health(n *yaml.Node) *Health {
	h := &Health{}
	span := func(to *time.Duration) func(*yaml.Node) {
		return func(n *yaml.Node) {
			text := r.String(n, "a time")
			d, err := time.ParseDuration(text)
			if err != nil && r.Err == nil {
				r.Failf(n, "the time %.40q is not valid; write 10s or 1m30s", text)
			}
			*to = d
		}
	}
	r.each(n, "healthcheck", map[string]func(*yaml.Node){
		"test":     func(n *yaml.Node) { h.Test = r.String(n, "test") },
		"disable":  func(n *yaml.Node) { h.Disabled = r.String(n, "disable") == "true" },
		"interval": span(&h.Interval), "timeout": span(&h.Timeout), "start_period": span(&h.StartPeriod),
		"retries": func(n *yaml.Node) {
			text := r.String(n, "retries")
			var err error
			if h.Retries, err = strconv.Atoi(text); err != nil && r.Err == nil {
				r.Failf(n, "retries is a number, not %.40q", text)
			}
		},
	})
	if err := h.check(); err != nil && r.Err == nil {
		r.Failf(n, "%v", err)
	}
	return h
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
	if n = r.Value(n); n.Kind == yaml.SequenceNode && len(n.Content) == 1 {
		n = r.Value(n.Content[0])
	}
	p := Pull(r.String(n, "pull_policy"))
	if !slices.Contains(pulls, p) {
		r.Failf(n, "pull_policy %.80q: use one of %s, %s and %s", p, PullIfNotPresent, PullAlways, PullNever)
	}
	return p
}

// env reads variables as KEY=VALUE.
func (r *jobReader) env(n *yaml.Node) (env []string) {
	for _, e := range r.Mapping(n, "variables") {
		env = append(env, e.Key+"="+r.String(e.Value, "variables"))
	}
	return env
}

// each calls the function of each key of the mapping n. Errors name the mapping by the text in what.
func (r *jobReader) each(n *yaml.Node, what string, read map[string]func(*yaml.Node)) {
	for _, e := range r.Known(r.Mapping(n, what), what, slices.Sorted(maps.Keys(read))) {
		read[e.Key](e.Value)
	}
}

// texts reads a list of texts, or one text.
func (r *jobReader) texts(n *yaml.Node, what string) (all []string) {
	if n = r.Value(n); n.Kind != yaml.SequenceNode {
		return []string{r.String(n, what)}
	}
	for _, n := range n.Content {
		all = append(all, r.String(n, what))
	}
	return all
}
