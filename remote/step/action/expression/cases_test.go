package expression

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// row is a row of the language-neutral tests of GitHub's expressions.
type row struct {
	Expr     string
	Contexts map[string]json.RawMessage
	Result   *struct {
		Kind  string
		Value any
	}
	Err     *struct{ Kind, Value string }
	Options struct{ Skip []string }
}

// TestConformance runs all rows of the conformance cases. Of the rows that are marked for another implementation it
// does not compare the texts of errors.
func TestConformance(t *testing.T) {
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	files, err := filepath.Glob(filepath.Join(root, "actions_expressions", "*.json"))
	require.NoError(t, err)
	count := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var groups map[string][]row
		require.NoError(t, json.Unmarshal(data, &groups))
		for group, rows := range groups {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".json")+"/"+group, func(t *testing.T) {
				for _, r := range rows {
					count++
					r.check(t)
				}
			})
		}
	}
	t.Logf("%d rows", count)
	require.Greater(t, count, 300)
}

func (r *row) check(t *testing.T) {
	s := Scope{Values: map[string]Value{}}
	for name, text := range r.Contexts {
		v, err := Evaluate("fromJSON("+quoted(string(text))+")", Scope{})
		require.NoError(t, err)
		s.Values[strings.ToLower(name)] = v
	}
	v, err := Evaluate(r.Expr, s)
	if r.Err != nil {
		require.Error(t, err, r.Expr)
		if !slices.Contains(r.Options.Skip, "typescript") {
			require.True(t, strings.HasPrefix(err.Error(), r.Err.Value), "%s\nwant %s\ngot  %s", r.Expr, r.Err.Value, err)
		}
		return
	}
	require.NoError(t, err, r.Expr)
	require.Equal(t, r.Result.Kind, v.Kind(), r.Expr)
	require.Equal(t, r.Result.Value, decoded(t, v), r.Expr)
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
