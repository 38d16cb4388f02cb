package inventory

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/spell"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// maxText bounds an inventory, in bytes. An instance takes a few hundred.
	maxText = 4 << 20
	// maxInstances bounds the number of instances in an inventory.
	maxInstances = 10_000
	// maxDepth bounds the nesting; an inventory needs four levels.
	maxDepth = 16
)

// Fallback has the values for keys that the file does not set.
type Fallback struct {
	Capacity int      // if zero, 1
	Runner   []string // as in instance.Instance, and so are the following
	vmconfig.Options
	// Resolver is called once for each text, so that its answers may change over time. Required.
	Resolver func() (Resolver, error)
}

// Parse reads an inventory. name stands for the text in errors; paths in it are relative to dir. ctx bounds the calls
// of the Resolver. The error is an [*Error] with the first mistake in the text.
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
	r := &reader{ctx: ctx, name: name, dir: dir, resolver: sync.OnceValues(fallback.Resolver)}
	root := r.load(text)
	items := r.mapping(root, "an inventory", []string{"defaults", "instances"})
	r.defaults = entry{
		capacity: max(fallback.Capacity, 1), runner: fallback.Runner, Options: fallback.Options,
	}
	if n, given := items["defaults"]; given {
		r.defaults = r.entry(n, "defaults:", entryKeys[2:], r.defaults)
	}
	list, given := items["instances"]
	if !given {
		r.fail(root, "the key instances: is missing; it lists the VMs")
	}
	all := r.instances(list)
	if r.err != nil {
		return nil, r.err
	}
	return all, nil
}

// reader reads one text. Its methods record the first error in err, and after that return without a result.
type reader struct {
	ctx       context.Context // that of Parse
	name, dir string
	resolver  func() (Resolver, error)
	defaults  entry
	err       error
}

// load returns the only document of a text.
func (r *reader) load(text []byte) *yaml.Node {
	if len(text) > maxText {
		r.fail(nil, "the inventory has more than %d MiB", maxText>>20)
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text),
		yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		r.fail(nil, "%v", err)
		return nil
	}
	root := r.document(loader)
	if root == nil {
		r.fail(nil, "the inventory is empty; it needs the key instances:")
		return nil
	}
	if next := r.document(loader); next != nil {
		r.fail(next, "an inventory is one YAML document, here begins another")
	}
	return root
}

// document returns the next document, or nil at the end of the text.
func (r *reader) document(loader *yaml.Loader) *yaml.Node {
	doc := new(yaml.Node)
	err := loader.Load(doc)
	switch {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.failSyntax(err)
	case doc.Kind != yaml.DocumentNode || len(doc.Content) != 1:
		r.fail(nil, "the inventory is not a YAML document")
	default:
		return doc.Content[0]
	}
	return nil
}

func (r *reader) failSyntax(err error) {
	bad, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		r.fail(nil, "not valid YAML: %v", err)
		return
	}
	message := bad.Message
	if bad.ContextMsg != "" {
		message += " " + bad.ContextMsg
	}
	var at *yaml.Node
	if bad.Mark.Line > 0 {
		at = &yaml.Node{Line: bad.Mark.Line, Column: max(bad.Mark.Column, 1)}
	}
	r.fail(at, "not valid YAML: %s", message)
}

// plain checks that n is of a kind, without anchors, aliases and tags. like describes the kind. It returns false if
// this or an earlier check has failed.
func (r *reader) plain(n *yaml.Node, kind yaml.Kind, what, like string) bool {
	switch {
	case r.err != nil:
	case n.Kind == yaml.AliasNode, n.Anchor != "":
		r.fail(n, "anchors and aliases are not supported here; what all instances share goes to defaults:")
	case n.Style&yaml.TaggedStyle != 0:
		r.fail(n, "tags are not supported here; remove the one that begins with !")
	case n.Kind != kind, kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		r.fail(n, "%s must be %s", what, like)
	}
	return r.err == nil
}

// mapping reads a mapping with some of the known keys, or with any keys if known is empty.
func (r *reader) mapping(n *yaml.Node, what string, known []string) map[string]*yaml.Node {
	if !r.plain(n, yaml.MappingNode, what, "a mapping (key: value)") {
		return nil
	}
	items := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if !r.plain(key, yaml.ScalarNode, "a key", "a text") {
			return nil
		}
		if _, twice := items[key.Value]; twice {
			r.fail(key, "the key %q stands here for the second time", key.Value)
		}
		if known != nil && !slices.Contains(known, key.Value) {
			if near := spell.Nearest(key.Value, known); near != "" {
				r.fail(key, "unknown key %q, did you mean %q?", key.Value, near)
			}
			r.fail(key, "unknown key %q; %s has %s", key.Value, what, strings.Join(known, ", "))
		}
		items[key.Value] = n.Content[i+1]
	}
	return items
}

// list reads a list. empty is the error for an empty list.
func (r *reader) list(n *yaml.Node, what, empty string) []*yaml.Node {
	if !r.plain(n, yaml.SequenceNode, what, "a list") {
		return nil
	}
	if len(n.Content) == 0 {
		r.fail(n, "%s", empty)
	}
	return n.Content
}

// text reads a text that is not empty. Numbers and dates are accepted as texts: 42 is a valid id.
func (r *reader) text(n *yaml.Node, what string) string {
	if !r.plain(n, yaml.ScalarNode, what, "a text") {
		return ""
	}
	if n.Value == "" {
		r.fail(n, "%s is empty", what)
	}
	return n.Value
}

// count reads a number of at least 1. less is the advice for smaller numbers.
func (r *reader) count(n *yaml.Node, what, less string) int {
	if !r.plain(n, yaml.ScalarNode, what, "a number") {
		return 0
	}
	v, err := strconv.Atoi(n.Value)
	switch {
	case err != nil:
		r.fail(n, "%s must be a whole number, not %q", what, n.Value)
	case v < 1:
		r.fail(n, "%s %d: %s", what, v, less)
	}
	return v
}
