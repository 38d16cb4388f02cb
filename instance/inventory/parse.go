package inventory

import (
	"context"
	"strconv"
	"sync"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// maxText bounds an inventory, in bytes. An instance takes a few hundred.
	maxText = 4 << 20
	// maxInstances bounds the number of instances in an inventory.
	maxInstances = 10_000
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
	r := &reader{ctx: ctx, dir: dir, resolver: sync.OnceValues(fallback.Resolver)}
	root := r.load(name, text)
	items := r.mapping(root, "an inventory", []string{"defaults", "instances"})
	r.defaults = entry{
		capacity: max(fallback.Capacity, 1), runner: fallback.Runner, Options: fallback.Options,
		health: healthcheck.Default,
	}
	if n, given := items["defaults"]; given {
		r.defaults = r.entry(n, "defaults:", entryKeys[2:], r.defaults)
	}
	list, given := items["instances"]
	if !given {
		r.Failf(root, "the key instances: is missing; it lists the VMs")
		return nil, r.Err
	}
	all := r.instances(list)
	if r.Err != nil {
		return nil, r.Err
	}
	return all, nil
}

// reader reads one text.
type reader struct {
	yamltree.Reader
	ctx      context.Context // that of Parse
	dir      string
	resolver func() (Resolver, error)
	defaults entry
}

// load returns the only document of a text.
func (r *reader) load(name string, text []byte) *yaml.Node {
	t, err := yamltree.Load(name, text, maxText)
	r.Reader = yamltree.Reader{Text: t, Rules: yamltree.Rules{
		MaxCost: 4 * maxText, Unquoted: true, NoAliases: "what all instances share goes to defaults:",
	}}
	r.Fail(err)
	if len(t.Docs) == 0 {
		r.Failf(nil, "the inventory is empty; it needs the key instances:")
		return &yaml.Node{}
	}
	if len(t.Docs) > 1 {
		r.Failf(t.Docs[1], "an inventory is one YAML document, here begins another")
	}
	return t.Docs[0]
}

// mapping reads a mapping with some of the known keys.
func (r *reader) mapping(n *yaml.Node, what string, known []string) map[string]*yaml.Node {
	items := map[string]*yaml.Node{}
	for _, e := range r.Known(r.Mapping(n, what), what, known) {
		items[e.Key] = e.Value
	}
	return items
}

// list reads a list. empty is the error for an empty list.
func (r *reader) list(n *yaml.Node, what, empty string) []*yaml.Node {
	items := r.List(n, what)
	if len(items) == 0 {
		r.Failf(n, "%s", empty)
	}
	return items
}

// text reads a text that is not empty. Numbers and dates are accepted as texts: 42 is a valid id.
func (r *reader) text(n *yaml.Node, what string) string {
	text := r.String(n, what)
	if text == "" {
		r.Failf(n, "%s is empty", what)
	}
	return text
}

// count reads a number of at least 1. less is the advice for smaller numbers.
func (r *reader) count(n *yaml.Node, what, less string) int {
	text := r.text(n, what)
	v, err := strconv.Atoi(text)
	switch {
	case err != nil:
		r.Failf(n, "%s must be a whole number, not %q", what, text)
	case v < 1:
		r.Failf(n, "%s %d: %s", what, v, less)
	}
	return v
}
