package gitlabci

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// linker adds the needs of the jobs of a pipeline to its graph.
type linker struct {
	*Pipeline
	stages []string
	builds map[string][]int // the nodes of a job, by its name and by the names of its parallel builds
}

// need is a need of a job.
type need struct {
	at        *yaml.Node // its name
	matrix    *yaml.Node // of the builds that are needed; nil for all of them
	optional  bool
	artifacts bool
}

// given are the things that a job gets with the artifacts of another.
const given = pipeline.Files | pipeline.Values

// link adds what one job needs. A job without needs waits for all earlier stages, and gets the artifacts of all their
// jobs, or of those in dependencies.
func (l *linker) link(i int) {
	d, node := l.Jobs[i].draft, &l.Graph.Nodes[i]
	dependencies := d.key("dependencies")
	needs := find(d.ruling.rule, "needs")
	if isNull(needs) {
		needs = find(d.node, "needs")
	}
	if isNull(needs) {
		node.After = pipeline.Control
		if dependencies == nil {
			node.After |= given
		}
		l.depend(i, dependencies)
		return
	}
	node.Strict = true
	var only []string
	if dependencies != nil {
		only = d.texts("dependencies", dependencies)
	}
	for _, n := range l.needsOf(i, needs) {
		edge := pipeline.Control
		base := baseName(n.at.Value)
		if n.artifacts && (dependencies == nil || slices.Contains(only, n.at.Value) || slices.Contains(only, base)) {
			edge |= given
		}
		for _, from := range l.find(i, n) {
			node.Needs = append(node.Needs, pipeline.Need{Name: l.Jobs[from].Name, Edge: edge})
		}
	}
}

// depend adds the jobs in dependencies, whose artifacts the job gets. They are in earlier stages.
func (l *linker) depend(i int, list *yaml.Node) {
	if list == nil {
		return
	}
	d, t := l.Jobs[i].draft, l.file.tree
	for _, n := range t.flat("dependencies", list, 0) {
		switch {
		case n.Kind != yaml.ScalarNode:
			t.failf(n, "dependencies takes the names of jobs, not %s", describe(n))
			return
		case l.file.jobs[n.Value].node == nil && l.file.jobs[baseName(n.Value)].node == nil && len(l.file.left) == 0:
			t.failf(n, "dependencies of the job%s: there is no job%s%s", lang.QuoteName(d.name), lang.QuoteName(n.Value),
				lang.Suggest(n.Value, l.file.Jobs(), ""))
			return
		}
		for _, from := range l.builds[n.Value] {
			if l.Graph.Nodes[from].Stage >= l.Graph.Nodes[i].Stage {
				t.failf(n, "dependencies of the job%s: the job%s is in no earlier stage", lang.QuoteName(d.name),
					lang.QuoteName(n.Value))
				return
			}
			need := pipeline.Need{Name: l.Jobs[from].Name, Edge: given}
			l.Graph.Nodes[i].Needs = append(l.Graph.Nodes[i].Needs, need)
		}
	}
}

// needKeys are the keys of an item of needs.
var needKeys = []string{"job", "artifacts", "optional", "parallel", "pipeline", "project", "ref"}

// needsOf reads needs. Needs of other pipelines and projects are left out, with a notice.
func (l *linker) needsOf(i int, list *yaml.Node) (needs []need) {
	t, d := l.file.tree, l.Jobs[i].draft
	if list.Kind == yaml.ScalarNode {
		t.failf(list, "needs must be a list of jobs, not %s", describe(list))
		return nil
	}
	for _, item := range t.flat("needs", list, 0) {
		if isNull(item) {
			continue
		}
		n := need{at: item, artifacts: true}
		if item.Kind == yaml.MappingNode {
			t.checkKeys(item, "needs", needKeys, "")
			if other := findKey(item, "pipeline"); other != nil || findKey(item, "project") != nil {
				l.Jobs[i].Notices = append(l.Jobs[i].Notices, fmt.Sprintf(
					"%s: a need of another pipeline or project is left out: the job gets no files from there", t.place(item)))
				continue
			}
			n.at, n.matrix = find(item, "job"), find(find(item, "parallel"), "matrix")
			n.artifacts = d.yes("artifacts of needs", find(item, "artifacts"), true)
			n.optional = d.yes("optional of needs", find(item, "optional"), false)
		}
		if isNull(n.at) || n.at.Kind != yaml.ScalarNode {
			t.failf(item, "an item of needs is the name of a job, or a mapping with job")
			return nil
		}
		needs = append(needs, n)
	}
	return needs
}

// yes returns the truth value of n, or otherwise if it is missing.
func (d *draft) yes(label string, n *yaml.Node, otherwise bool) bool {
	switch {
	case isNull(n):
		return otherwise
	case n.Kind != yaml.ScalarNode || n.ShortTag() != tagBool:
		d.file.tree.failf(n, "%s is true or false", label)
	}
	return n.Value == "true"
}

// find returns the nodes that a need of node i means.
func (l *linker) find(i int, n need) []int {
	t, d := l.file.tree, l.Jobs[i].draft
	job, needed := lang.QuoteName(d.name), lang.QuoteName(n.at.Value)
	all := l.builds[n.at.Value]
	if n.matrix != nil {
		all = slices.DeleteFunc(slices.Clone(all), func(from int) bool {
			return !slices.ContainsFunc(itemsOf(n.matrix), func(entry *yaml.Node) bool {
				return l.Jobs[from].draft.share.isIn(entry, d)
			})
		})
	}
	switch {
	case len(all) > 0:
	case n.optional, slices.Contains(l.file.cfg.Skip, n.at.Value):
		return nil
	case n.matrix != nil && len(l.builds[n.at.Value]) > 0:
		t.failf(n.matrix, "the job%s needs builds of the job%s, and its %s have other values", job, needed,
			plural.Count(len(l.builds[n.at.Value]), "build"))
	default:
		t.failf(n.at, "the job%s needs%s, which is not in this pipeline%s; let it be there, or add optional: true", job,
			needed, l.whyLeft(n.at.Value))
	}
	for _, from := range all {
		if l.Graph.Nodes[from].Stage > l.Graph.Nodes[i].Stage {
			t.failf(n.at, "the job%s needs%s, which is in a later stage; a job needs jobs of its own and of earlier stages", job,
				needed)
			return nil
		}
	}
	return all
}

// whyLeft says why the pipeline does not have the job name, if that is known.
func (l *linker) whyLeft(name string) string {
	at := slices.IndexFunc(l.Left, func(left Left) bool { return left.Name == name || left.Base == name })
	if at < 0 {
		return ""
	}
	return ", by its " + l.Left[at].Why
}

// isIn reports whether the share is one of the combinations in an entry of a matrix, in the needs of d.
func (s share) isIn(entry *yaml.Node, d *draft) bool {
	count := 0
	for key, values := range entries(entry) {
		count++
		has := func(v variable) bool {
			isValue := func(n *yaml.Node) bool { return d.ofMatrix(n) == v.value }
			return v.name == key.Value && slices.ContainsFunc(itemsOf(values), isValue)
		}
		if !slices.ContainsFunc(s.vars, has) {
			return false
		}
	}
	return count > 0 && count == len(s.vars)
}

// ofMatrix returns the text n with each $[[ matrix.NAME ]] replaced by a value of the job's own matrix.
func (d *draft) ofMatrix(n *yaml.Node) string {
	var out strings.Builder
	for rest := n.Value; ; {
		before, after, found := strings.Cut(rest, "$[[")
		inner, behind, closed := strings.Cut(after, "]]")
		name, isMatrix := strings.CutPrefix(strings.TrimSpace(inner), "matrix.")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		at := slices.IndexFunc(d.share.vars, func(v variable) bool { return v.name == name })
		if !closed || !isMatrix || at < 0 {
			d.file.tree.failf(n, "$[[ ]] takes matrix.NAME here, with a name of the matrix of the job%s", lang.QuoteName(d.name))
			return ""
		}
		out.WriteString(d.share.vars[at].value)
		rest = behind
	}
}
