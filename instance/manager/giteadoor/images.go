package giteadoor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/yamltree"
)

// addLabel adds a label of runs-on. It may be written as for Gitea's own runner: with an image, as
// ubuntu-latest:docker://node:24, or with :host.
func (cfg *Config) addLabel(text string) {
	label, image, hasImage := strings.Cut(text, ":docker://")
	if !hasImage {
		label = strings.TrimSuffix(text, ":host")
	} else {
		if cfg.Images == nil {
			cfg.Images = map[string]string{}
		}
		cfg.Images[label] = image
	}
	cfg.Labels = append(cfg.Labels, label)
}

// checkJobs returns an error for images and variables that are not valid.
func (cfg *Config) checkJobs() error {
	for _, label := range sortedkeys.Of(cfg.Images) {
		switch image := cfg.Images[label]; {
		case !isLabel(label):
			return fmt.Errorf("the label %.160q in images: write a word of runs-on", label)
		case image == "" || strings.ContainsAny(image, " \t\r\n"):
			return fmt.Errorf("the image %.160q of %s: write it as node:24", image, label)
		case len(cfg.Labels) > 0 && !slices.Contains(cfg.Labels, label):
			return fmt.Errorf("images has %s, which is not in labels: add it there", label)
		}
	}
	for _, name := range sortedkeys.Of(cfg.Environment) {
		if !variableNames.MatchString(name) {
			return fmt.Errorf("the variable %.160q in environment: write a name of letters, digits and _", name)
		}
	}
	return nil
}

// isLabel reports whether a text can be a word of runs-on.
func isLabel(label string) bool {
	return label != "" && len(label) <= 100 && !strings.ContainsAny(label, ": ,\n")
}

// readTexts reads a mapping of texts.
func readTexts(r *yamltree.Reader, e yamltree.Entry, into map[string]string) map[string]string {
	if into == nil {
		into = map[string]string{}
	}
	for _, entry := range r.Mapping(e.Value, e.Key) {
		into[entry.Key] = r.String(entry.Value, entry.Key)
	}
	return into
}

// adapt gives the job of a pipeline the way to the server and the variables of the configuration and, if it has no
// container, the image of the first label that has one.
func (cfg *Config) adapt(req *pb.SubmitPipelineRequest) {
	env := maps.Clone(cfg.Environment)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, req.GetOptions().GetEnv())
	req.Options.Env = env
	if cfg.Relayed && req.GetServices() != nil {
		req.Services.Relay = cfg.URL
	}
	if len(cfg.Images) == 0 {
		return
	}
	text := req.GetSource().GetText()
	at, labels := placeOf(text)
	for _, label := range labels {
		if image := cfg.Images[label]; image != "" && at != nil {
			req.Source.Text, req.InImage = withContainer(text, at, image), true
			return
		}
	}
}

// placeOf returns the first key of the only job of a workflow, and the labels of its runs-on. Both are empty for a job
// with a container, and for one that calls a workflow.
func placeOf(text []byte) (first *yaml.Node, labels []string) {
	t, err := yamltree.Load("", text, maxRecord)
	if err != nil || len(t.Docs) == 0 {
		return nil, nil
	}
	r := &yamltree.Reader{Text: t, Rules: yamltree.Rules{MaxCost: 4 * maxRecord, Unquoted: true, Nulls: true}}
	for _, key := range r.Mapping(t.Docs[0], "") {
		if key.Key != "jobs" {
			continue
		}
		for _, job := range r.Mapping(key.Value, "") {
			for i, part := range r.Mapping(job.Value, "") {
				if i == 0 {
					first = part.At
				}
				switch part.Key {
				case "runs-on":
					labels = labelsOf(r, part.Value)
				case "container", "uses":
					return nil, nil
				}
			}
		}
	}
	return first, labels
}

// labelsOf returns the labels of a runs-on.
func labelsOf(r *yamltree.Reader, n *yaml.Node) (all []string) {
	switch n.Kind {
	case yaml.SequenceNode:
		for _, item := range r.List(n, "") {
			all = append(all, r.String(item, ""))
		}
	case yaml.MappingNode:
		for _, part := range r.Mapping(n, "") {
			if part.Key == "labels" {
				all = labelsOf(r, part.Value)
			}
		}
	default:
		all = append(all, r.String(n, ""))
	}
	return all
}

// withContainer returns the text of a workflow with the key container before the first key of its job.
func withContainer(text []byte, first *yaml.Node, image string) []byte {
	quoted, _ := json.Marshal(image) // cannot fail; YAML reads it, too
	begin, at := placeIn(text, first)
	key := fmt.Sprintf("container: {image: %s}", quoted)
	if before := text[begin:at]; len(bytes.Trim(before, " ")) > 0 { // a flow mapping, on one line with its bracket
		key += ", "
	} else {
		key += "\n" + string(before)
	}
	return slices.Concat(text[:at], []byte(key), text[at:])
}

// placeIn returns the offsets of a node and of its line. YAML counts characters, and has more line breaks than one.
func placeIn(text []byte, n *yaml.Node) (line, at int) {
	number, column, before := 1, 1, rune(0)
	for i, c := range string(text) {
		if number == n.Line && column == n.Column {
			return line, i
		}
		switch {
		case c == '\n' && before == '\r':
			line = i + 1
		case strings.ContainsRune("\r\n\u0085\u2028\u2029", c):
			number, column, line = number+1, 1, i+utf8.RuneLen(c)
		default:
			column++
		}
		before = c
	}
	return line, len(text)
}
