package action

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/remote/step/action/expression"
)

// Builds are the builds of a job: one for each combination of its matrix, or a single one.
type Builds struct {
	List []Build
	// FailFast says that the failure of one build cancels the others.
	FailFast bool
	// MaxParallel bounds the builds that run at once.
	MaxParallel int
}

// Build is a build of a job.
type Build struct {
	// Name is the name of the job, with the values of the matrix. No other build of the job has it.
	Name string
	// Matrix has the values of the matrix. It is nil for a job without one.
	Matrix map[string]any
	// Strategy is the context strategy.
	Strategy map[string]any
}

const (
	// maxBuilds bounds the builds of a job, as on GitHub.
	maxBuilds = 256
	// maxTried bounds the combinations before exclude, and maxRules the entries of include and of exclude.
	maxTried, maxRules = 1 << 16, 1000
	// maxBuildName bounds the name of a build, in bytes.
	maxBuildName = 120
)

// Builds returns the builds of the job.
func (j *Job) Builds(v Values) (*Builds, error) {
	m := &matrixBuilder{evaluator: j.evaluator(v, nil), at: j.strategyTree}
	given, err := m.value(m.at, "strategy")
	if err != nil {
		return nil, err
	}
	if kind := given.Kind(); kind != "Object" && kind != "Null" {
		return nil, m.errorf(m.at, "strategy must be a mapping, not %s", described(given))
	}
	b := &Builds{FailFast: true}
	var all []combination
	for name, value := range given.Properties() {
		at := cmp.Or(j.strategyTree.at(name), j.strategyTree)
		own := evaluator{file: m.file}
		literal := &tree{line: at.line, column: at.column, value: value}
		switch name {
		case "fail-fast":
			b.FailFast, err = own.boolean(literal, name, true)
		case "max-parallel":
			var n float64
			n, err = own.number(literal, name, maxBuilds)
			b.MaxParallel = int(max(min(n, maxBuilds), 1))
		case "matrix":
			m.at = at
			all, err = m.combinations(value)
		}
		if err != nil {
			return nil, err
		}
	}
	b.name(j.Name, all)
	return b, nil
}

// name makes the builds of combinations. Without one there is a single build.
func (b *Builds) name(job string, all []combination) {
	if all == nil {
		b.List = []Build{{Name: job}}
	}
	seen := map[string]int{}
	for _, c := range all {
		name := c.name(job)
		if seen[name]++; seen[name] > 1 {
			name = fmt.Sprintf("%s #%d", name, seen[name])
		}
		b.List = append(b.List, Build{Name: name, Matrix: c.values})
	}
	if total := len(b.List); b.MaxParallel == 0 || b.MaxParallel > total {
		b.MaxParallel = total
	}
	for i := range b.List {
		b.List[i].Strategy = map[string]any{
			"fail-fast": b.FailFast, "job-index": float64(i), "job-total": float64(len(b.List)),
			"max-parallel": float64(b.MaxParallel),
		}
	}
}

// combination is a combination of the values of a matrix.
type combination struct {
	keys   []string // in the order of the matrix
	values map[string]any
	plain  int // how many of the keys are variables of the matrix; the others are from include
}

// name returns the name of the build of a job with these values.
func (c combination) name(job string) string {
	var list []string
	for _, key := range c.keys {
		list = leaves(c.values[key], list)
	}
	text := strings.Join(list, ", ")
	if len(text) > maxBuildName {
		text = strings.ToValidUTF8(text[:maxBuildName], "") + "..."
	}
	return job + " (" + text + ")"
}

// leaves appends the texts of the scalars in v.
func leaves(v any, list []string) []string {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range sortedkeys.Of(v) {
			list = leaves(v[key], list)
		}
	case []any:
		for _, item := range v {
			list = leaves(item, list)
		}
	default:
		list = append(list, expression.New(v).Text())
	}
	return list
}

// matrixBuilder makes the combinations of a matrix.
type matrixBuilder struct {
	evaluator
	at *tree // the matrix
}

// wrong returns an error about the entry of the matrix called key.
func (m *matrixBuilder) wrong(key, format string, args ...any) error {
	return m.errorf(cmp.Or(m.at.at(key), m.at), format, args...)
}

// combinations returns the combinations of a matrix, in GitHub's order: the values of the last variable change first.
func (m *matrixBuilder) combinations(matrix expression.Value) ([]combination, error) {
	if matrix.Kind() != "Object" {
		return nil, m.errorf(m.at, "the matrix must be a mapping of lists, not %s", described(matrix))
	}
	var names []string
	lists := map[string][]any{}
	for name, value := range matrix.Properties() {
		list, isList := value.Any().([]any)
		switch {
		case !isList:
			return nil, m.wrong(name, "%.64s of the matrix must be a list, not %s", name, described(value))
		case name != "include" && name != "exclude":
			if len(list) == 0 {
				return nil, m.wrong(name, "%.64s of the matrix has no values; GitHub refuses that", name)
			}
			names = append(names, name)
		case len(list) > maxRules:
			return nil, m.wrong(name, "%s has %d entries, and at most %d are allowed", name, len(list), maxRules)
		}
		lists[name] = list
	}
	var rules [2][]map[string]any
	for i, name := range []string{"exclude", "include"} {
		for _, item := range lists[name] {
			rule, isMapping := item.(map[string]any)
			if !isMapping {
				return nil, m.wrong(name, "an entry of %s must be a mapping, not %s", name, described(expression.New(item)))
			}
			rules[i] = append(rules[i], rule)
		}
	}
	all, err := m.product(names, lists, rules[0])
	if err == nil {
		all, err = m.include(names, all, rules[1])
	}
	switch {
	case err != nil:
		return nil, err
	case len(names) == 0 && len(rules[1]) == 0:
		return nil, m.errorf(m.at, "the matrix is empty; give it a list of values, or include")
	case len(all) == 0:
		return nil, m.errorf(m.at, "exclude leaves no combination of the matrix")
	}
	return all, nil
}

// tooMany is the error for too many builds.
func (m *matrixBuilder) tooMany() error {
	return m.errorf(m.at, "the matrix has more than %d combinations, which GitHub refuses; split the job", maxBuilds)
}

// product returns all combinations of the lists that no rule excludes.
func (m *matrixBuilder) product(
	names []string, lists map[string][]any, exclude []map[string]any,
) ([]combination, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var all []combination
	at := make([]int, len(names)) // the index of the value of each variable
	for tried := 0; ; tried++ {
		c := combination{keys: slices.Clone(names), values: map[string]any{}, plain: len(names)}
		for i, name := range names {
			c.values[name] = lists[name][at[i]]
		}
		if !slices.ContainsFunc(exclude, func(rule map[string]any) bool { return len(rule) > 0 && within(rule, c.values) }) {
			all = append(all, c)
		}
		if len(all) > maxBuilds || tried > maxTried {
			return nil, m.tooMany()
		}
		i := len(names) - 1
		for ; i >= 0; i-- {
			if at[i]++; at[i] < len(lists[names[i]]) {
				break
			}
			at[i] = 0
		}
		if i < 0 {
			return all, nil
		}
	}
}

// include adds the entries of include: to each combination whose variables they do not change, or else as combinations
// of their own.
func (m *matrixBuilder) include(names []string, all []combination, include []map[string]any) ([]combination, error) {
	product := len(all)
	for _, entry := range include {
		added := false
		for i := range all[:product] {
			c := &all[i]
			if fits := !slices.ContainsFunc(names, func(name string) bool {
				value, given := entry[name]
				return given && !within(value, c.values[name])
			}); fits {
				added = true
				c.add(entry)
			}
		}
		if added {
			continue
		}
		c := combination{values: map[string]any{}}
		for _, name := range names { // first, as in the others
			if value, given := entry[name]; given {
				c.keys, c.values[name] = append(c.keys, name), value
			}
		}
		c.plain = len(c.keys)
		c.add(entry)
		if all = append(all, c); len(all) > maxBuilds {
			return nil, m.tooMany()
		}
	}
	return all, nil
}

// add adds the entries that are not variables of the matrix.
func (c *combination) add(entry map[string]any) {
	for _, key := range sortedkeys.Of(entry) {
		i := slices.Index(c.keys, key)
		if i >= 0 && i < c.plain {
			continue
		}
		if i < 0 {
			c.keys = append(c.keys, key)
		}
		c.values[key] = entry[key]
	}
}

// within reports whether a value has all that is in wanted: the same scalar, or a mapping that has its entries.
func within(wanted, value any) bool {
	switch wanted := wanted.(type) {
	case map[string]any:
		given, isMapping := value.(map[string]any)
		for key, w := range wanted {
			if v, there := given[key]; !there || !within(w, v) {
				return false
			}
		}
		return isMapping
	case []any:
		given, isList := value.([]any)
		return isList && slices.EqualFunc(wanted, given, within)
	}
	switch value.(type) {
	case map[string]any, []any:
		return false
	}
	return expression.New(wanted).Text() == expression.New(value).Text()
}
