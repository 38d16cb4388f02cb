package gitlabci

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

const (
	// maxExtends bounds the length of a chain of extends.
	maxExtends = 11
	// maxReferences bounds the length of a chain of references.
	maxReferences = 10
)

func isReference(n *yaml.Node) bool { return n.Kind == yaml.SequenceNode && n.Tag == "!reference" }

// extended returns the job name merged over the jobs it extends. at is the node with the name, chain the jobs that led
// here.
func (f *File) extended(name string, at *yaml.Node, chain []string) *yaml.Node {
	switch n := f.whole[name]; {
	case f.tree.Err != nil:
		return &yaml.Node{}
	case n != nil:
		return n
	}
	n := f.extend(name, at, chain)
	if f.tree.Err == nil {
		f.whole[name] = n
	}
	return n
}

func (f *File) extend(name string, at *yaml.Node, chain []string) *yaml.Node {
	t := f.tree
	n := f.jobs[name].node
	switch {
	case slices.Contains(chain, name):
		return t.failf(at, "extends: the job%s extends itself, by way of %s", lang.QuoteName(name),
			strings.Join(append(chain, name), " > "))
	case n == nil:
		return t.failf(at, "extends: there is no job%s%s%s", lang.QuoteName(name), lang.Suggest(name, f.names, ""),
			f.mayBeElsewhere())
	case len(chain) > maxExtends:
		return t.failf(at, "extends: jobs extend each other more than %d deep", maxExtends)
	case n.Kind != yaml.MappingNode: // for example a list of script lines, for references
		return n
	}
	extends := find(n, "extends")
	if isNull(extends) {
		return n
	}
	var all *yaml.Node
	for _, b := range itemsOf(extends) {
		if b.Kind != yaml.ScalarNode {
			return t.failf(b, "extends takes the name of a job, or a list of names")
		}
		base := f.extended(b.Value, b, append(slices.Clip(chain), name))
		if base.Kind != yaml.MappingNode {
			return t.failf(b, "extends:%s is %s, not a job", lang.QuoteName(b.Value), describe(base))
		}
		all = t.merge(all, base)
	}
	return t.merge(all, n)
}

// resolve returns n with its references replaced by the nodes they name. chain has the references that led here.
func (f *File) resolve(n *yaml.Node, chain []string) *yaml.Node {
	if isReference(n) {
		return f.refer(n, chain)
	}
	if len(n.Content) == 0 || !holdsReference(n) {
		return n
	}
	c := f.tree.copyOf(n)
	for _, item := range n.Content {
		c.Content = append(c.Content, f.resolve(item, chain))
	}
	return c
}

func holdsReference(n *yaml.Node) bool {
	return isReference(n) || slices.ContainsFunc(n.Content, holdsReference)
}

// refer returns a copy of the node that the reference n names.
func (f *File) refer(n *yaml.Node, chain []string) *yaml.Node {
	t := f.tree
	path := make([]string, len(n.Content))
	for i, part := range n.Content {
		if part.Kind != yaml.ScalarNode {
			return t.failf(n, "!reference takes names, such as !reference [.setup, script]")
		}
		path[i] = part.Value
	}
	shown := strings.Join(path, "\x00")
	switch {
	case t.Err != nil:
		return &yaml.Node{}
	case len(path) == 0:
		return t.failf(n, "!reference is empty; write the job and its key, such as !reference [.setup, script]")
	case slices.Contains(chain, shown):
		return t.failf(n, "!reference:%s leads back to itself", lang.QuoteName(strings.Join(path, " ")))
	case len(chain) >= maxReferences:
		return t.failf(n, "!reference: references lead to others more than %d deep", maxReferences)
	}
	var found *yaml.Node
	switch {
	case f.jobs[path[0]].node != nil:
		found = f.extended(path[0], n, nil)
	case slices.Contains(globals, path[0]):
		found = f.globals[path[0]]
	}
	for _, key := range path[1:] {
		found = find(found, key)
	}
	if found == nil {
		return t.failf(n, "!reference: there is no%s%s", lang.QuoteName(strings.Join(path, " ")), f.mayBeElsewhere())
	}
	// It is copied because it may be used in many places.
	return t.duplicate(f.resolve(found, append(slices.Clip(chain), shown)))
}

// duplicate returns a copy of n with its content, and counts its cost.
func (t *tree) duplicate(n *yaml.Node) *yaml.Node {
	if !t.spend(n) {
		return &yaml.Node{}
	}
	c := t.copyOf(n)
	for _, item := range n.Content {
		c.Content = append(c.Content, t.duplicate(item))
	}
	return c
}
