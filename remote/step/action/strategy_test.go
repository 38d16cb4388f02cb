package action

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// workflowOf returns a workflow with a job that has a strategy.
func workflowOf(strategy string) []byte {
	return []byte("on: push\njobs:\n  a:\n    strategy: " + strategy + "\n    steps: [{run: x}]\n")
}

func TestCombinationsOfAMatrix(t *testing.T) {
	for name, tt := range map[string]struct {
		strategy string
		want     []string // the values as JSON, in order
	}{
		"the documented order": {
			"{matrix: {version: [10, 12], os: [u, w]}}",
			[]string{`{"os":"u","version":10}`, `{"os":"w","version":10}`, `{"os":"u","version":12}`, `{"os":"w","version":12}`},
		},
		"the documented example of include": {
			`
      matrix:
        fruit: [apple, pear]
        animal: [cat, dog]
        include:
          - color: green
          - color: pink
            animal: cat
          - fruit: apple
            shape: circle
          - fruit: banana
          - fruit: banana
            animal: cat`,
			[]string{
				`{"animal":"cat","color":"pink","fruit":"apple","shape":"circle"}`,
				`{"animal":"dog","color":"green","fruit":"apple","shape":"circle"}`,
				`{"animal":"cat","color":"pink","fruit":"pear"}`, `{"animal":"dog","color":"green","fruit":"pear"}`,
				`{"fruit":"banana"}`, `{"animal":"cat","fruit":"banana"}`,
			},
		},
		"include adds a value to one combination": {
			"{matrix: {os: [w, u], node: [14, 16], include: [{os: w, node: 16, npm: 6}]}}",
			[]string{
				`{"node":14,"os":"w"}`, `{"node":16,"npm":6,"os":"w"}`, `{"node":14,"os":"u"}`, `{"node":16,"os":"u"}`,
			},
		},
		"include adds a combination": {
			"{matrix: {os: [w], version: [12], include: [{os: w, version: 17}]}}",
			[]string{`{"os":"w","version":12}`, `{"os":"w","version":17}`},
		},
		"include alone": {
			"{matrix: {include: [{site: a}, {site: b}, {site: b}]}}",
			[]string{`{"site":"a"}`, `{"site":"b"}`, `{"site":"b"}`},
		},
		"the documented example of exclude": {
			`
      matrix:
        os: [macos-latest, windows-latest]
        version: [12, 14, 16]
        environment: [staging, production]
        exclude:
          - os: macos-latest
            version: 12
            environment: production
          - os: windows-latest
            version: 16`,
			[]string{
				`{"environment":"staging","os":"macos-latest","version":12}`,
				`{"environment":"staging","os":"macos-latest","version":14}`,
				`{"environment":"production","os":"macos-latest","version":14}`,
				`{"environment":"staging","os":"macos-latest","version":16}`,
				`{"environment":"production","os":"macos-latest","version":16}`,
				`{"environment":"staging","os":"windows-latest","version":12}`,
				`{"environment":"production","os":"windows-latest","version":12}`,
				`{"environment":"staging","os":"windows-latest","version":14}`,
				`{"environment":"production","os":"windows-latest","version":14}`,
			},
		},
		"include comes after exclude": {
			"{matrix: {a: [1, 2], exclude: [{a: 1}], include: [{a: 1, b: x}]}}",
			[]string{`{"a":2}`, `{"a":1,"b":"x"}`},
		},
		"mappings and lists as values": {
			"{matrix: {node: [{version: 14}, {version: 20, env: X}, [1]], exclude: [{node: {version: 20}}, {other: 1}]}}",
			[]string{`{"node":{"version":14}}`, `{"node":[1]}`},
		},
		"expressions": {
			`{matrix: {a: "${{ fromJSON('[1, true]') }}", b: ["${{ github.event_name }}"], ` +
				`include: "${{ fromJSON('[{\"a\":1,\"c\":null}]') }}"}}`,
			[]string{`{"a":1,"b":"push","c":null}`, `{"a":true,"b":"push"}`},
		},
		"an expression in the place of all": {
			`"${{ fromJSON('{\"matrix\": {\"b\": [1], \"a\": [2, 3]}}') }}"`,
			[]string{`{"a":2,"b":1}`, `{"a":3,"b":1}`},
		},
		"no matrix": {"{fail-fast: false}", []string{"null"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := ReadWorkflow("w.yml", workflowOf(tt.strategy))
			require.NoError(t, err)
			require.True(t, w.Jobs[0].IsKnown())
			builds, err := w.Jobs[0].Builds(Values{})
			require.NoError(t, err)
			var got []string
			names := map[string]bool{}
			for _, b := range builds.List {
				text, err := json.Marshal(b.Matrix)
				require.NoError(t, err)
				got = append(got, string(text))
				names[b.Name] = true
			}
			require.Equal(t, tt.want, got)
			require.Len(t, names, len(got), "the names differ")
		})
	}
}

func TestStrategiesOfAJob(t *testing.T) {
	w, err := ReadWorkflow("w.yml", workflowOf(`{fail-fast: false, max-parallel: 2, matrix: {a: [x, {b: y, c: 1.50}], `+
		`include: [{a: x, z: z}, {d: [p, q]}, {a: `+strings.Repeat("é", 100)+`}]}}`))
	require.NoError(t, err)
	builds, err := w.Jobs[0].Builds(Values{})
	require.NoError(t, err)
	require.Equal(t, []any{false, 2}, []any{builds.FailFast, builds.MaxParallel})
	require.Equal(t, []string{
		"a (x, z, p, q)", "a (y, 1.5, p, q)", "a (" + strings.Repeat("é", maxBuildName/2) + "...)",
	}, []string{builds.List[0].Name, builds.List[1].Name, builds.List[2].Name})
	require.Equal(t, map[string]any{"fail-fast": false, "job-index": 1.0, "job-total": 3.0, "max-parallel": 2.0},
		builds.List[1].Strategy)

	w, err = ReadWorkflow("w.yml", []byte("on: push\njobs: {a: {steps: [{run: x}]}}\n"))
	require.NoError(t, err)
	builds, err = w.Jobs[0].Builds(Values{})
	require.NoError(t, err)
	require.Equal(t, &Builds{FailFast: true, MaxParallel: 1, List: []Build{{
		Name: "a", Strategy: map[string]any{"fail-fast": true, "job-index": 0.0, "job-total": 1.0, "max-parallel": 1.0},
	}}}, builds)
}

func TestMistakesInAStrategyAreToldWithTheirPlace(t *testing.T) {
	list := func(n int) string { return "[0" + strings.Repeat(", 0", n-1) + "]" }
	for strategy, want := range map[string]string{
		"{matrix: {a: " + list(257) + "}}":                                       "w.yml:4:24: the matrix has more than 256",
		"{matrix: {a: " + list(16) + ", b: " + list(17) + "}}":                   "the matrix has more than 256 combinations",
		"{matrix: {a: [1], include: [" + strings.Repeat("{a: 2}, ", 256) + "]}}": "the matrix has more than 256 combinations",
		"{matrix: {a: x}}":                      "w.yml:4:28: a of the matrix must be a list, not a text",
		"{matrix: {a: {b: 1}}}":                 "w.yml:4:28: a of the matrix must be a list, not a mapping",
		"{matrix: {a: []}}":                     "w.yml:4:28: a of the matrix has no values",
		"{matrix: [1]}":                         "w.yml:4:24: the matrix must be a mapping of lists, not a list",
		"{matrix: {}}":                          "w.yml:4:24: the matrix is empty",
		"{matrix: {a: [1], exclude: [{a: 1}]}}": "w.yml:4:24: exclude leaves no combination",
		"{matrix: {a: [1], include: [2]}}":      "w.yml:4:42: an entry of include must be a mapping, not 2",
		"{matrix: {a: [1], exclude: [" + strings.Repeat("{a: 2}, ", 1001) + "]}}": "exclude has 1001 entries, and at most",
		"{fail-fast: maybe}":                    "w.yml:4:27: fail-fast is true or false, not a text",
		"{max-parallel: 0}":                     "w.yml:4:30: max-parallel is a number above 0, not 0",
		"{max-parallel: .nan}":                  "w.yml:4:30: max-parallel is a number above 0, not a text",
		"[1]":                                   "w.yml:4:15: strategy must be a mapping, not a list",
		"{matrix: {a: ['${{ env.A }}']}}":       "w.yml:4:29: an item of a: Unrecognized named-value: 'env'",
		"{matrix: '${{ fromJSON(matrix.a) }}'}": "w.yml:4:24: matrix: Unrecognized named-value: 'matrix'",
	} {
		_, err := ReadWorkflow("w.yml", workflowOf(strategy))
		require.ErrorContains(t, err, want, "%.100s", strategy)
		_, err = ReadJob("w.yml", workflowOf(strategy), "a")
		require.ErrorContains(t, err, want)
	}
}

// The combinations of many lists are more than memory can hold.
func TestCombinationsAreBoundedBeforeExclude(t *testing.T) {
	var lists []string
	for i := range 20 {
		lists = append(lists, fmt.Sprintf("l%d: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", i))
	}
	_, err := ReadWorkflow("w.yml", workflowOf("{matrix: {"+strings.Join(lists, ", ")+", exclude: [{l0: 0}]}}"))
	require.ErrorContains(t, err, "more than 256 combinations")
}

func TestValuesOfAMatrixAreBounded(t *testing.T) {
	item := `"${{ format('{0}{0}{0}{0}', '` + strings.Repeat("x", 20_000) + `') }}"`
	_, err := ReadWorkflow("w.yml", workflowOf("{matrix: {a: ["+strings.Repeat(item+", ", 20)+"]}}"))
	require.NoError(t, err)
	wide := "x: &x " + item + "\n" + string(workflowOf("{matrix: {a: ["+strings.Repeat("*x, ", 200)+"]}}"))
	w, err := ReadWorkflow("w.yml", []byte(wide))
	if err == nil {
		_, err = w.Jobs[0].Builds(Values{})
	}
	require.Error(t, err)
}
