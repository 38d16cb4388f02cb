package action

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A value that the matrix does not have was taken, and the job ran with it.
func TestValuesThatTheMatrixOfAWorkflowDoesNotHaveAreTold(t *testing.T) {
	var long strings.Builder
	for i := range 30 {
		fmt.Fprintf(&long, "%d, ", i)
	}
	for _, c := range []struct{ strategy, name, value, want string }{
		{"{matrix: {go: [1.26, '1.27', 1.30]}}", "go", "1.26", ""},
		{"{matrix: {go: [1.26, '1.27', 1.30]}}", "go", "1.30", ""},
		{"{matrix: {go: [1.26, '1.27', 1.30]}}", "go", "1.3", ""}, // what GitHub makes of 1.30
		{"{matrix: {go: [1.26, '1.27']}}", "go", "1.28", `no value "1.28" of go; there is "1.26", "1.27"`},
		{"{matrix: {version: [1]}}", "versions", "1", `no variable "versions", did you mean "version"?`},
		{"{matrix: {go: [1.26], os: [a]}}", "version", "1.26", `no variable "version"; it has "go", "os"`},
		{"{matrix: {go: [" + long.String() + "]}}", "go", "x", `"19" and 10 more`},
		{"{matrix: {go: [1], include: [{go: 2, cc: gcc}, {cc: clang}]}}", "go", "2", ""},
		{"{matrix: {go: [1], include: [{go: 2, cc: gcc}, {cc: clang}]}}", "cc", "clang", ""},
		{"{matrix: {go: [1], include: [{cc: gcc}, {cc: clang}]}}", "cc", "tcc", `no value "tcc" of cc; there is "gcc"`},
		{"{matrix: {include: [{cc: gcc}], exclude: [{cc: x}]}}", "cc", "x", `no value "x" of cc; there is "gcc"`},
		{"{matrix: {go: [&v 1, *v]}}", "go", "2", `no value "2" of go; there is "1"`},
		// These are known only to expressions, or are no texts.
		{"{matrix: '${{ fromJSON(vars.M) }}'}", "go", "1", ""},
		{"'${{ fromJSON(vars.S) }}'", "go", "1", ""},
		{"{matrix: {go: '${{ fromJSON(vars.M) }}'}}", "go", "1", ""},
		{"{matrix: {go: ['${{ vars.GO }}', 2]}}", "go", "1", ""},
		{"{matrix: {go: [{version: 1}]}}", "go", `{"version": 1}`, ""},
		{"{matrix: {go: [1], include: '${{ fromJSON(vars.M) }}'}}", "cc", "x", ""},
		{"{fail-fast: false}", "go", "1", ""},
	} {
		j, err := ReadJob("w.yml", []byte("jobs: {a: {steps: [{run: x}],\n  strategy: "+c.strategy+"}}"), "")
		require.NoError(t, err, c.strategy)
		err = j.CheckMatrix(map[string]string{c.name: c.value})
		if c.want == "" {
			require.NoError(t, err, c.strategy)
			continue
		}
		require.ErrorContains(t, err, c.want, c.strategy)
		require.ErrorContains(t, err, `w.yml:2: the matrix of the job "a" has no`)
	}
	j, err := ReadJob("w.yml", []byte("jobs: {a: {steps: [{run: x}]}}"), "")
	require.NoError(t, err)
	require.NoError(t, j.CheckMatrix(nil))
	require.EqualError(t, j.CheckMatrix(map[string]string{"go": "1"}), `w.yml: the job "a" has no matrix`)
}
