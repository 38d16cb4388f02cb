package gitlabci

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

const (
	// maxExtends is the longest chain of extends.
	maxExtends = 11
	// maxReferences is the longest chain of references.
	maxReferences = 10
)

func isReference(n *yaml.Node) bool { return n.Kind == yaml.SequenceNode && n.Tag == "!reference" }

// extended returns the job name merged over the jobs it extends. at is the node that names it, chain the jobs that led
// here.
func (f *File) extended(name string, at *yaml.Node, chain []string) (*yaml.Node, error) {
	if n := f.whole[name]; n != nil {
		return n, nil
	}
	n, err := f.extend(name, at, chain)
	if err == nil {
		f.whole[name] = n
	}
	return n, err
}

func (f *File) extend(name string, at *yaml.Node, chain []string) (*yaml.Node, error) {
	t := f.tree
	n := find(f.top, name)
	switch {
	case slices.Contains(chain, name):
		return nil, t.errorf(at, "extends: the job%s extends itself, by way of %s", lang.Quote(name),
			strings.Join(append(chain, name), " > "))
	case n == nil:
		return nil, t.errorf(at, "extends: there is no job%s%s", lang.Quote(name), lang.Suggest(name, f.jobs(), ""))
	case len(chain) > maxExtends:
		return nil, t.errorf(at, "extends: jobs extend each other more than %d deep", maxExtends)
	case n.Kind != yaml.MappingNode:
		return n, nil // such as a list of script lines, for references
	}
	extends := find(n, "extends")
	if isNull(extends) {
		return n, nil
	}
	bases := []*yaml.Node{extends}
	if extends.Kind == yaml.SequenceNode {
		bases = extends.Content
	}
	var all *yaml.Node
	for _, b := range bases {
		if b.Kind != yaml.ScalarNode {
			return nil, t.errorf(b, "extends takes the name of a job, or a list of names")
		}
		base, err := f.extended(b.Value, b, append(slices.Clip(chain), name))
		if err != nil {
			return nil, err
		}
		if base.Kind != yaml.MappingNode {
			return nil, t.errorf(b, "extends:%s is %s, not a job", lang.Quote(b.Value), describe(base))
		}
		if all, err = t.merge(all, base); err != nil {
			return nil, err
		}
	}
	return t.merge(all, n)
}

// resolve returns n with its references replaced by the named nodes. chain has the references that led here.
func (f *File) resolve(n *yaml.Node, chain []string) (*yaml.Node, error) {
	if isReference(n) {
		return f.refer(n, chain)
	}
	if len(n.Content) == 0 || !holdsReference(n) {
		return n, nil
	}
	c := f.tree.copyOf(n)
	for _, item := range n.Content {
		r, err := f.resolve(item, chain)
		if err != nil {
			return nil, err
		}
		c.Content = append(c.Content, r)
	}
	return c, nil
}

func holdsReference(n *yaml.Node) bool {
	return isReference(n) || slices.ContainsFunc(n.Content, holdsReference)
}

// refer returns a copy of the node that the reference n names.
func (f *File) refer(n *yaml.Node, chain []string) (*yaml.Node, error) {
	t := f.tree
	path := make([]string, len(n.Content))
	for i, part := range n.Content {
		if part.Kind != yaml.ScalarNode {
			return nil, t.errorf(n, "!reference takes names, such as !reference [.setup, script]")
		}
		path[i] = part.Value
	}
	if len(path) == 0 {
		return nil, t.errorf(n, "!reference is empty; write the job and its key, such as !reference [.setup, script]")
	}
	shown := strings.Join(path, "\x00")
	switch {
	case slices.Contains(chain, shown):
		return nil, t.errorf(n, "!reference:%s leads back to itself", lang.Quote(strings.Join(path, " ")))
	case len(chain) >= maxReferences:
		return nil, t.errorf(n, "!reference: references lead to others more than %d deep", maxReferences)
	}
	found, err := f.extendedPart(path, n)
	if err != nil {
		return nil, err
	}
	// Copied, because the node may be used in many places.
	resolved, err := f.resolve(found, append(slices.Clip(chain), shown))
	if err != nil {
		return nil, err
	}
	return f.duplicate(resolved)
}

func (f *File) extendedPart(path []string, at *yaml.Node) (*yaml.Node, error) {
	found := find(f.top, path[0])
	if found != nil && !slices.Contains(globals, path[0]) {
		var err error
		if found, err = f.extended(path[0], at, nil); err != nil {
			return nil, err
		}
	}
	for _, key := range path[1:] {
		if found == nil {
			break
		}
		found = find(found, key)
	}
	if found == nil {
		return nil, f.tree.errorf(at, "!reference: there is no%s", lang.Quote(strings.Join(path, " ")))
	}
	return found, nil
}

// duplicate returns a copy of n with its content, and counts its cost.
func (f *File) duplicate(n *yaml.Node) (*yaml.Node, error) {
	if err := f.tree.spend(n); err != nil {
		return nil, err
	}
	c := f.tree.copyOf(n)
	for _, item := range n.Content {
		d, err := f.duplicate(item)
		if err != nil {
			return nil, err
		}
		c.Content = append(c.Content, d)
	}
	return c, nil
}
