package action

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// matrix has the values of each variable of a job's matrix as they are in the file. nil stands for values that only
// expressions know, or that are not texts or numbers.
type matrix map[string][]string

// readMatrix reads the matrix of a strategy. It is nil if there is none, if an expression gives the variables, or if
// its form is not valid: the one build that runs here does not need it.
func readMatrix(strategy *yaml.Node) matrix {
	var given struct{ Matrix map[string]yaml.Node }
	if strategy.Decode(&given) != nil || len(given.Matrix) == 0 {
		return nil
	}
	m := matrix{}
	for name, values := range given.Matrix {
		if name == "include" || name == "exclude" {
			continue
		}
		var list []yaml.Node
		if m[name] = []string{}; values.Decode(&list) != nil {
			m[name] = nil
		}
		for _, value := range list {
			m.add(name, value)
		}
	}
	var include []map[string]yaml.Node
	if n, there := given.Matrix["include"]; there && n.Decode(&include) != nil {
		return nil
	}
	for _, entry := range include {
		for name, value := range entry {
			if _, there := m[name]; !there {
				m[name] = []string{}
			}
			m.add(name, value)
		}
	}
	return m
}

// add adds a value of a variable, unless its values are not known.
func (m matrix) add(name string, n yaml.Node) {
	switch {
	case m[name] == nil:
	case n.Kind == yaml.AliasNode:
		m.add(name, *n.Alias)
	case n.Kind != yaml.ScalarNode || strings.Contains(n.Value, "${{"):
		m[name] = nil
	case !slices.Contains(m[name], n.Value):
		m[name] = append(m[name], n.Value)
	}
}

// maxShown bounds the values or names in an error.
const maxShown = 20

// CheckMatrix checks that values for a build are in the matrix of the job, as far as that is known before it runs.
func (j *Job) CheckMatrix(values map[string]string) error {
	if len(values) > 0 && j.strategy == 0 {
		return fmt.Errorf("%s: the job %.64q has no matrix", j.file, j.Name)
	}
	if len(values) == 0 {
		return nil
	}
	m := readMatrix(j.rawStrategy)
	if m == nil {
		return nil
	}
	names := sortedkeys.Of(m)
	for _, name := range sortedkeys.Of(values) {
		known, there := m[name]
		if !there {
			return fmt.Errorf("%s:%d: the matrix of the job %.64q has no variable %.64q%s", j.file, j.strategy, j.Name, name,
				lang.Suggest(name, names, "; it has "+shown(names)))
		}
		is := func(value string) bool { return value == values[name] || number(value) == values[name] }
		if known != nil && !slices.ContainsFunc(known, is) {
			return fmt.Errorf("%s:%d: the matrix of the job %.64q has no value %.64q of %s; there is %s", j.file, j.strategy,
				j.Name, values[name], name, shown(known))
		}
	}
	return nil
}

// number returns the text of a number as an expression has it: 1.3 for 1.30. It returns other texts unchanged.
func number(text string) string {
	if v, err := expression.Evaluate(text, expression.Scope{}); err == nil && v.Kind() == "Number" {
		return v.Text()
	}
	return text
}

// shown lists the first texts.
func shown(list []string) string {
	more := ""
	if len(list) > maxShown {
		more = fmt.Sprintf(" and %d more", len(list)-maxShown)
		list = list[:maxShown]
	}
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = fmt.Sprintf("%.64q", text)
	}
	return strings.Join(quoted, ", ") + more
}
