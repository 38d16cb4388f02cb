package expression

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "compare with the package, and write the table")

const (
	expressionsFile = "testdata/expressions.jsonl"
	// tried is how many expressions are compared with the package, and listed how many of them the table has.
	tried, listed = 30_000, 600
)

// randomContext is the context c of the expressions.
const randomContext = `{"s": "abc", "e": "", "n": 3, "f": 1.5, "neg": -0, "t": true, "z": null,
	"a": [1, "two", null, true, [5, 6]],
	"o": {"B": "y", "a": "x", "k": {"a": 1}, "n": null}, "l": [{"a": 1, "b": "q"}, {"a": "2"}, {"b": 3}, 7], "num": "12",
	"sp": " 1 ", "lo": {"x": {"a": 1}, "y": {"a": 2}, "z": [3]}}`

// writer writes random expressions. It leaves out what is known to differ: the form of numbers with more than 15 digits
// or an exponent, which is that of .NET here, and case, which computes only its choice here.
type writer struct{ *rand.Rand }

func (w writer) of(all ...string) string { return all[w.IntN(len(all))] }

func (w writer) literal() string {
	return w.of("0", "1", "-1", "+1", "1.5", "0x1F", "1e3", ".5", "-.5e-3", "0.1", "100", "true", "false", "null", "''",
		"'a'", "'ABC'", "'abc'", "'12'", "' 12 '", "'1e3'", "'0x1f'", "'it''s'", "'[1,\"b\"]'", "'{\"a\":1}'", "'-0'",
		"'Infinity'", "'{0}-{1}'", "'{{x}} {0}'", "','", "'é'", "'\t3'", "'true'")
}

// access writes an access to the context.
func (w writer) access(depth int) string {
	text := "c." + w.of("s", "e", "n", "f", "neg", "t", "z", "a", "o", "l", "num", "sp", "nope", "lo", "O", "S")
	for w.IntN(2) == 0 {
		switch w.IntN(5) {
		case 0:
			text += "." + w.of("a", "b", "B", "k", "x", "length")
		case 1:
			text += "[" + w.expression(max(depth-2, 0)) + "]"
		case 2:
			text += ".*"
		case 3:
			text += "[" + w.of("0", "1", "4", "-1", "1.5", "'a'", "'0'", "true", "99") + "]"
		default:
			text += "[*]"
		}
	}
	return text
}

// shapes are operators and functions with arguments.
var shapes = []string{
	"!%s", "(%s)", "contains(%s, %s)", "startsWith(%s, %s)", "EndsWith(%s, %s)", "join(%s)", "join(%s, %s)", "toJSON(%s)",
	"fromJSON(toJSON(%s))", "format('{0}', %s)", "format('{{{0}}}{1}', %s, %s)", "format('a{1}b{0}', %s, %s)",
}

func (w writer) expression(depth int) string {
	switch {
	case depth == 0 || w.IntN(6) == 0:
		if w.IntN(2) == 0 {
			return w.literal()
		}
		return w.access(depth)
	case w.IntN(3) == 0:
		return w.expression(depth-1) + w.of(" == ", " != ", " < ", " <= ", " > ", " >= ", " && ", " || ") +
			w.expression(depth-1)
	}
	text := w.of(shapes...)
	for strings.Contains(text, "%s") {
		text = strings.Replace(text, "%s", w.expression(depth-1), 1)
	}
	return text
}

// theirs returns the results of the package.
func theirs(t *testing.T, expressions []string) (results []*string) {
	t.Helper()
	dir := t.TempDir()
	install := exec.CommandContext(t.Context(), "npm", "install", "--silent", "--ignore-scripts", "--prefix", dir,
		"@actions/expressions@0.3.61")
	out, err := install.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var all bytes.Buffer
	for _, text := range expressions {
		require.NoError(t, json.NewEncoder(&all).Encode(text))
	}
	context, file := filepath.Join(dir, "context.json"), filepath.Join(dir, "expressions")
	require.NoError(t, os.WriteFile(context, []byte(randomContext), 0o600))
	require.NoError(t, os.WriteFile(file, all.Bytes(), 0o600))
	out, err = exec.CommandContext(t.Context(), "node", "testdata/expressions.mjs", dir, context, file).Output()
	require.NoError(t, err)
	for line := range bytes.Lines(out) {
		var result *string
		require.NoError(t, json.Unmarshal(line, &result))
		results = append(results, result)
	}
	require.Len(t, results, len(expressions))
	return results
}

// ours returns the result here.
func ours(t *testing.T, text string) *string {
	t.Helper()
	var context any
	require.NoError(t, json.Unmarshal([]byte(randomContext), &context))
	v, err := Evaluate(text, Scope{Values: map[string]Value{"c": New(context)}})
	if err != nil {
		return nil
	}
	if kind := v.Kind(); kind == "Array" || kind == "Object" {
		v, err = Evaluate("toJSON(v)", Scope{Values: map[string]Value{"v": v}})
		require.NoError(t, err)
	}
	result := v.Text()
	return &result
}

// The table is that of @actions/expressions 0.3.61. `make prove WHAT=tables` writes it, and compares many more.
//
//stepmux:faults users | An expression of a workflow has another value than at GitHub
func TestRandomExpressionsAreThoseOfGitHub(t *testing.T) {
	if *update {
		w := writer{rand.New(rand.NewPCG(1, 2))} // no secret
		var expressions []string
		for i := range tried {
			expressions = append(expressions, w.expression(1+i%4))
		}
		var table bytes.Buffer
		for i, want := range theirs(t, expressions) {
			require.Equal(t, want, ours(t, expressions[i]), "%s", expressions[i])
			if i < listed {
				row, err := json.Marshal([]any{expressions[i], want})
				require.NoError(t, err)
				fmt.Fprintf(&table, "%s\n", row)
			}
		}
		require.NoError(t, os.WriteFile(expressionsFile, table.Bytes(), 0o644))
	}
	table, err := os.ReadFile(expressionsFile)
	require.NoError(t, err)
	for line := range bytes.Lines(table) {
		var row [2]*string
		require.NoError(t, json.Unmarshal(line, &row))
		require.Equal(t, row[1], ours(t, *row[0]), "%s", line)
	}
}
