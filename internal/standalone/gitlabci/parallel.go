package gitlabci

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// maxParallel bounds the builds of a job with parallel, as in GitLab.
const maxParallel = 200

// share is one of the builds of a job with parallel. The zero value is a job without parallel.
type share struct {
	name         string // of the build, as GitLab names it: "test 2/5" or "test: [linux, arm64]"
	index, total int    // from 1
	vars         []variable
}

// shares returns the builds of the job: a single one without parallel.
func (d *draft) shares() []share {
	n := find(d.node, "parallel")
	if isNull(n) {
		return []share{{name: d.name}}
	}
	var all []share
	if n.Kind == yaml.MappingNode {
		d.file.tree.checkKeys(n, "parallel", []string{"matrix"}, "")
		all = d.matrix(n)
	} else {
		count, err := strconv.Atoi(n.Value)
		if err != nil || count < 1 || count > maxParallel {
			d.file.tree.failf(n, "parallel takes a number from 1 to %d, or matrix", maxParallel)
			count = 1
		}
		for i := range count {
			all = append(all, share{name: fmt.Sprintf("%s %d/%d", d.name, i+1, count)})
		}
	}
	for i := range all {
		all[i].index, all[i].total = i+1, len(all)
	}
	if len(all) == 0 {
		all = []share{{name: d.name}}
	}
	return all
}

// matrix returns a share for each combination of the variables in each entry of the matrix.
func (d *draft) matrix(parallel *yaml.Node) (all []share) {
	t := d.file.tree
	n := find(parallel, "matrix")
	if n == nil || n.Kind != yaml.SequenceNode {
		t.failf(parallel, "matrix must be a list of mappings (NAME: [value, value])")
		return nil
	}
	for _, entry := range n.Content {
		if entry.Kind != yaml.MappingNode {
			t.failf(entry, "an entry of matrix must be a mapping (NAME: [value, value]), not %s", describe(entry))
			return nil
		}
		combined := [][]variable{nil}
		for key, values := range entries(entry) {
			var longer [][]variable
			t.checkMatrixValues(key, values)
			for _, vars := range combined {
				for _, value := range itemsOf(values) {
					if len(all)+len(longer) >= maxParallel {
						t.failf(entry, "matrix has more than %d combinations", maxParallel)
						return nil
					}
					longer = append(longer, append(slices.Clip(vars), d.file.variable(key, value)))
				}
			}
			combined = longer
		}
		for _, vars := range combined {
			var values []string
			for _, v := range vars {
				values = append(values, v.value)
			}
			all = append(all, share{name: d.name + ": [" + strings.Join(values, ", ") + "]", vars: vars})
		}
	}
	return all
}

// checkMatrixValues checks the values of a variable of a matrix. GitLab takes texts and whole numbers.
func (t *tree) checkMatrixValues(key, values *yaml.Node) {
	if isNull(values) || values.Kind == yaml.SequenceNode && len(values.Content) == 0 ||
		values.Kind == yaml.ScalarNode && strings.TrimSpace(values.Value) == "" {
		t.failf(values, "the variable%s of matrix has no value", lang.Quote(key.Value))
	}
	for _, value := range itemsOf(values) {
		if value.Kind != yaml.ScalarNode || value.ShortTag() != tagText && value.ShortTag() != tagInt {
			t.failf(value, "a value of matrix must be a text or a whole number, not %s", describe(value))
		}
	}
}

// baseName returns the name of a job without the suffix of a parallel build.
func baseName(name string) string {
	if i := strings.LastIndex(name, ": ["); i > 0 && strings.HasSuffix(name, "]") {
		return name[:i]
	}
	if i := strings.LastIndex(name, " "); i > 0 {
		index, total, ok := strings.Cut(name[i+1:], "/")
		if ok && strings.Trim(index+total, "0123456789") == "" && index != "" && total != "" {
			return name[:i]
		}
	}
	return name
}

// choose returns the build called name: the job itself without parallel, or a parallel build by its name, its number,
// or the values of the matrix in Config. If parallel is a number, the name of the job means all of it.
func (d *draft) choose(name string) share {
	all := d.shares()
	matrix := d.file.cfg.Matrix
	switch {
	case name == d.name && len(all) == 1 && len(matrix) == 0:
		return all[0]
	case name == d.name && all[0].vars == nil && len(matrix) == 0:
		d.notices = append(d.notices, fmt.Sprintf(
			"the job runs once and whole; its parts (parallel) are called %.80q and so on", all[0].name))
		return share{name: name, index: 1, total: 1}
	}
	if len(matrix) > 0 && all[0].vars == nil {
		d.file.tree.failf(d.at, "the job%s has no matrix", lang.QuoteName(d.name))
		return all[0]
	}
	var fit []share
	for _, s := range all {
		byNumber := s.total > 0 && name == fmt.Sprintf("%s %d/%d", d.name, s.index, s.total)
		byValues := name == d.name && len(matrix) > 0 && s.has(matrix)
		if s.name == name || byNumber || byValues {
			fit = append(fit, s)
		}
	}
	switch t := d.file.tree; {
	case len(fit) == 1:
		return fit[0]
	case name == d.name && len(matrix) > 0 && len(fit) == 0:
		d.explain(all, matrix)
		return all[0]
	case name == d.name && len(matrix) > 0:
		t.failf(d.at,
			"%d builds of the job%s have these values of its matrix; give more values, or the name must choose one: %s",
			len(fit), lang.QuoteName(d.name), lang.QuoteNames(buildNames(fit)))
		return all[0]
	}
	d.file.tree.failf(d.at, "the job%s has %s (parallel), and the name must choose one: %s", lang.QuoteName(d.name),
		plural.Count(len(all), "build"), lang.QuoteNames(buildNames(all)))
	return all[0]
}

func buildNames(shares []share) []string {
	list := make([]string, len(shares))
	for i, s := range shares {
		list[i] = s.name
	}
	return list
}

// explain fails because no share has the values in wanted. It names the variable or the value that is not there.
func (d *draft) explain(all []share, wanted map[string]string) {
	values := map[string][]string{}
	for _, s := range all {
		for _, v := range s.vars {
			if !slices.Contains(values[v.name], v.value) {
				values[v.name] = append(values[v.name], v.value)
			}
		}
	}
	known := slices.Sorted(maps.Keys(values))
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		switch {
		case values[name] == nil:
			d.file.tree.failf(d.at, "the matrix of the job%s has no variable %.64q%s", lang.Quote(d.name), name,
				lang.Suggest(name, known, "; it has "+lang.QuoteNames(known)))
		case !slices.Contains(values[name], wanted[name]):
			d.file.tree.failf(d.at, "the matrix of the job%s has no value %.64q of %s; there is %s", lang.Quote(d.name),
				wanted[name], name, lang.QuoteNames(values[name]))
		}
	}
	d.file.tree.failf(d.at, "the matrix of the job%s does not have these values together; its builds are %s",
		lang.Quote(d.name), lang.QuoteNames(buildNames(all)))
}

// has reports whether the share has the values in wanted.
func (s share) has(wanted map[string]string) bool {
	for name, value := range wanted {
		if !slices.ContainsFunc(s.vars, func(v variable) bool { return v.name == name && v.value == value }) {
			return false
		}
	}
	return true
}
