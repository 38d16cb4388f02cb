package expr

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

// testCase is a conformance case, without the fields that do not concern expressions.
type testCase struct {
	Name      string
	Kind      string
	Context   map[string]any
	Rows      json.RawMessage
	StepsYAML string `json:"steps_yaml"`
	Files     map[string]any
	Expect    struct {
		Status      string
		LogContains []string `json:"log_contains"`
	}
}

// testRow is a row of a table of expressions.
type testRow struct {
	Expr      string
	Want      any
	WantError bool `json:"want_error"`
}

// cases returns the conformance cases below a folder of STEPMUX_CASES.
func cases(t *testing.T, folder string) []testCase {
	t.Helper()
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	var found []testCase
	err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".json" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var c testCase
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		found = append(found, c)
		return nil
	})
	require.NoError(t, err)
	return found
}

func TestTablesOfExpressionsHaveTheExpectedValues(t *testing.T) {
	found := 0
	for _, c := range cases(t, "engine") {
		if c.Kind != "expr_table" {
			continue
		}
		s := Scope{}
		for name, x := range c.Context {
			s[name] = value(t, x)
		}
		var rows []testRow
		require.NoError(t, json.Unmarshal(c.Rows, &rows))
		for _, row := range rows {
			found++
			t.Run(c.Name+" "+row.Expr, func(t *testing.T) {
				if row.WantError {
					evalError(t, s, row.Expr)
					return
				}
				require.Equal(t, value(t, row.Want), eval(t, s, row.Expr))
			})
		}
	}
	require.NotZero(t, found, "no table of expressions was found")
}

// A case of one expression passes it to a step as the input v, and the step prints V=<v>.
func TestExpressionsOfStepsEqualTheOutputOfTheStep(t *testing.T) {
	found := 0
	for _, c := range cases(t, filepath.Join("neighbour", "today")) {
		text, ok := inputV(t, c.StepsYAML)
		if !ok {
			continue
		}
		found++
		t.Run(c.Name, func(t *testing.T) {
			if c.Expect.Status != "success" {
				evalError(t, nil, text)
				return
			}
			require.Contains(t, c.Expect.LogContains, "V=<"+eval(t, nil, text).Text()+">\n")
		})
	}
	require.NotZero(t, found, "no case of one expression was found")
}

func inputV(t *testing.T, steps string) (string, bool) {
	for _, doc := range documents(t, steps) {
		var job struct {
			Run []struct {
				Inputs struct {
					V *string `yaml:"v"`
				} `yaml:"inputs"`
			} `yaml:"run"`
		}
		if doc.Decode(&job) == nil && len(job.Run) == 1 && job.Run[0].Inputs.V != nil {
			return *job.Run[0].Inputs.V, true
		}
	}
	return "", false
}

func TestTextsOfJobsThatSucceedAreAccepted(t *testing.T) {
	found := 0
	for _, c := range cases(t, ".") {
		if c.Expect.Status != "success" {
			continue
		}
		texts := []string{c.StepsYAML}
		for name, file := range c.Files {
			content, ok := file.(string)
			if ok && (strings.HasSuffix(name, "step.yml") || strings.HasSuffix(name, "func.yml")) {
				texts = append(texts, content)
			}
		}
		t.Run(c.Name, func(t *testing.T) {
			for _, text := range texts {
				for _, doc := range documents(t, text) {
					found += acceptScalars(t, doc)
				}
			}
		})
	}
	require.NotZero(t, found, "no text with an expression was found")
}

func acceptScalars(t *testing.T, n *yaml.Node) int {
	found := 0
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "${{") {
		found++
		_, err := ParseTemplate(n.Value)
		require.NoError(t, err, "%q", n.Value)
	}
	for _, child := range n.Content {
		found += acceptScalars(t, child)
	}
	return found
}

// documents returns the YAML documents of text, or nil if it is not YAML.
func documents(t *testing.T, text string) []*yaml.Node {
	t.Helper()
	loader, err := yaml.NewLoader(strings.NewReader(text))
	require.NoError(t, err)
	var docs []*yaml.Node
	for {
		doc := new(yaml.Node)
		err := loader.Load(doc)
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			return nil
		}
		docs = append(docs, doc)
	}
}
