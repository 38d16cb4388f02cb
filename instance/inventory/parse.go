package inventory

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/spell"
)

const (
	// maxText bounds an inventory, in bytes: a thousand instances have a few hundred each.
	maxText = 4 << 20
	// maxInstances bounds the instances of one.
	maxInstances = 10_000
	// maxDepth is the deepest nesting; an inventory needs four levels.
	maxDepth = 16
)

// Fallback applies to an instance where the file says nothing.
type Fallback struct {
	Capacity int      // if zero, 1
	Runner   []string // as in instance.Instance
	// Resolver is called once for each text, so that its answers may change over time. Required.
	Resolver func() (Resolver, error)
}

// Parse reads an inventory. name stands for the text in errors; paths in it are relative to dir. ctx bounds the calls
// of the Resolver. The error is an [*Error] with the first mistake found.
//
//	defaults:            # for all instances; each may have its own
//	  user: ci
//	  key: keys/ci       # file with the private key
//	  capacity: 4        # builds at once
//	instances:
//	  - id: vm-1
//	    address: 10.0.0.1
//	  - id: vm-2
//	    address: vm-2.example.com:2222
//	    max_uses: 100    # builds in all
//	    host_keys: [ssh-ed25519 AAAA...]
func Parse(ctx context.Context, name, dir string, text []byte, fallback Fallback) ([]instance.Instance, error) {
	r := &reader{ctx: ctx, name: name, dir: dir, fallback: fallback}
	root, err := r.load(text)
	if err != nil {
		return nil, err
	}
	items, err := r.mapping(root, "an inventory", []string{"defaults", "instances"})
	if err != nil {
		return nil, err
	}
	var defaults entry
	if n, given := items["defaults"]; given {
		if defaults, err = r.entry(n, "defaults:", entryKeys[2:], entry{}); err != nil {
			return nil, err
		}
	}
	list, given := items["instances"]
	if !given {
		return nil, r.errorf(root, "the key instances: is missing; it lists the VMs")
	}
	return r.instances(list, defaults)
}

// reader reads one text.
type reader struct {
	ctx       context.Context // that of Parse
	name, dir string
	fallback  Fallback
	defaults  entry
	asked     Resolver // nil before
}

// load returns the only document of a text.
func (r *reader) load(text []byte) (*yaml.Node, error) {
	if len(text) > maxText {
		return nil, r.errorf(nil, "the inventory has more than %d MiB", maxText>>20)
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text),
		yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		return nil, r.errorf(nil, "%v", err)
	}
	var docs []*yaml.Node
	for len(docs) < 2 {
		doc := new(yaml.Node)
		err := loader.Load(doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, r.syntaxError(err)
		}
		if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
			return nil, r.errorf(nil, "the inventory is not a YAML document")
		}
		docs = append(docs, doc.Content[0])
	}
	switch len(docs) {
	case 0:
		return nil, r.errorf(nil, "the inventory is empty; it needs the key instances:")
	case 1:
		return docs[0], nil
	default:
		return nil, r.errorf(docs[1], "an inventory is one YAML document, here begins another")
	}
}

func (r *reader) syntaxError(err error) error {
	bad, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		return r.errorf(nil, "not valid YAML: %v", err)
	}
	message := bad.Message
	if bad.ContextMsg != "" {
		message += " " + bad.ContextMsg
	}
	if bad.Mark.Line <= 0 {
		return r.errorf(nil, "not valid YAML: %s", message)
	}
	return &Error{File: r.name, Line: bad.Mark.Line, Column: max(bad.Mark.Column, 1),
		Message: "not valid YAML: " + message}
}

// plain checks that n is of a kind, without anchors, aliases and tags. like describes the kind.
func (r *reader) plain(n *yaml.Node, kind yaml.Kind, what, like string) error {
	switch {
	case n.Kind == yaml.AliasNode, n.Anchor != "":
		return r.errorf(n, "anchors and aliases are not supported here; what all instances share goes to defaults:")
	case n.Style&yaml.TaggedStyle != 0:
		return r.errorf(n, "tags are not supported here; remove the one that begins with !")
	case n.Kind != kind, kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		return r.errorf(n, "%s must be %s", what, like)
	}
	return nil
}

// mapping reads a mapping with some of the known keys, or with any keys if known is empty.
func (r *reader) mapping(n *yaml.Node, what string, known []string) (map[string]*yaml.Node, error) {
	if err := r.plain(n, yaml.MappingNode, what, "a mapping (key: value)"); err != nil {
		return nil, err
	}
	items := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if err := r.plain(key, yaml.ScalarNode, "a key", "a text"); err != nil {
			return nil, err
		}
		if _, twice := items[key.Value]; twice {
			return nil, r.errorf(key, "the key %q stands here for the second time", key.Value)
		}
		if known != nil && !slices.Contains(known, key.Value) {
			if near := spell.Nearest(key.Value, known); near != "" {
				return nil, r.errorf(key, "unknown key %q, did you mean %q?", key.Value, near)
			}
			return nil, r.errorf(key, "unknown key %q; %s has %s", key.Value, what, strings.Join(known, ", "))
		}
		items[key.Value] = n.Content[i+1]
	}
	return items, nil
}

// list reads a list.
func (r *reader) list(n *yaml.Node, what string) ([]*yaml.Node, error) {
	if err := r.plain(n, yaml.SequenceNode, what, "a list"); err != nil {
		return nil, err
	}
	return n.Content, nil
}

// text reads a text that is not empty. Numbers and dates are texts too: 42 is a valid id.
func (r *reader) text(n *yaml.Node, what string) (string, error) {
	if err := r.plain(n, yaml.ScalarNode, what, "a text"); err != nil {
		return "", err
	}
	if n.Value == "" {
		return "", r.errorf(n, "%s is empty", what)
	}
	return n.Value, nil
}

// count reads a number of at least 1. less is the advice for a smaller number.
func (r *reader) count(n *yaml.Node, what, less string) (int, error) {
	if err := r.plain(n, yaml.ScalarNode, what, "a number"); err != nil {
		return 0, err
	}
	v, err := strconv.Atoi(n.Value)
	switch {
	case err != nil:
		return 0, r.errorf(n, "%s must be a whole number, not %q", what, n.Value)
	case v < 1:
		return 0, r.errorf(n, "%s %d: %s", what, v, less)
	}
	return v, nil
}
