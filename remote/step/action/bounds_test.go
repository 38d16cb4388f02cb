package action

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/liveheap"
	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// grows runs a workflow's steps, and returns how much memory they keep in use while one more runs, in MiB. env is the
// env of that one.
func (tr *trial) grows(steps, env string) (engine.Result, int64) {
	tr.t.Helper()
	tr.workflow(steps + "- {if: always(), env: {" + env + "}, run: echo at its end}\n")
	before, after := liveheap.Bytes(), int64(0)
	tr.log.On("at its end", func() { after = liveheap.Bytes() })
	res := tr.run()
	require.NotZero(tr.t, after, "%s\n%s", res.Message, tr.log)
	return res, (after - before) >> 20
}

// Symptom: a value of one byte kept the line or the file in memory in which a step had written it, of up to 8 MiB. A
// step could leave 10,000 of them.
func TestSmallValuesKeepNoLongTextsInMemory(t *testing.T) {
	racefree.Only(t)
	const long = `head -c 1000000 /dev/zero | tr '\0' x`
	lines := func(before, after string) string {
		return `for i in 1 2 3 4 5 6 7 8; do printf %s "` + before + `"; ` + long + `; echo "` + after + `"; done`
	}
	for name, script := range map[string]string{
		"annotation":  lines("::notice title=", "::"),
		"output file": lines("a=", "") + ` > "$GITHUB_OUTPUT"; echo a=1 >> "$GITHUB_OUTPUT"`,
		"env file":    lines("V=", "") + ` > "$GITHUB_ENV"; printf 'V=\nA%d=1\n' $$ >> "$GITHUB_ENV"`,
		"path file":   `{ head -c 8000000 /dev/zero | tr '\0' '\n'; echo /dir/$$; } > "$GITHUB_PATH"`,
	} {
		t.Run(name, func(t *testing.T) {
			res, grown := newTrial(t).grows(strings.Repeat("- run: |\n    "+script+"\n", 6), "")
			require.Equal(t, engine.Success, res.Status, res.Message)
			require.Less(t, grown, int64(16), "MiB, of 48")
		})
	}
}

// Symptom: the states that actions saved, and the variables that steps set for later ones, were not counted: an action
// could use any amount of the step runner's memory.
func TestStatesAndVariablesOfAllStepsAreBoundedTogether(t *testing.T) {
	racefree.Only(t)
	const left = "the outputs, exports and saved states of the job's steps have more than 33554432 bytes in all"
	tr := newTrial(t)
	tr.file("node.sh", "#!/bin/sh\n{ printf s=; head -c 8000000 /dev/zero | tr '\\0' x; echo; } > \"$GITHUB_STATE\"\n")
	tr.action.Node = tr.place.WorkDir + "/node.sh"
	tr.file("a/action.yml", "runs: {using: node20, main: m.js, post: m.js}\n")
	tr.file("a/m.js", "")
	res, grown := tr.grows(strings.Repeat("- {if: always(), uses: ./a}\n", 10), "")
	require.Equal(t, engine.Failure, res.Status)
	require.Contains(t, res.Message, left)
	require.Less(t, grown, int64(48), "MiB, of 80")

	var steps, none strings.Builder
	for i := range 10 {
		fmt.Fprintf(&steps, "- if: always()\n  env: {%s}\n  run: |\n    { printf V%d=; head -c 8000000 /dev/zero | tr '\\0' "+
			"x; echo; } > \"$GITHUB_ENV\"\n", none.String(), i)
		fmt.Fprintf(&none, "V%d: '', ", i)
	}
	res, grown = newTrial(t).grows(steps.String(), none.String())
	require.Contains(t, res.Message, left)
	require.Less(t, grown, int64(48), "MiB, of 80")
}

// Symptom: an action of 200 KB that calls itself used 1.8 GiB of the step runner's memory: the steps of all its 32
// calls were in memory before the first was counted.
func TestStepsOfActionsThatCallThemselvesAreCountedBeforeTheyAreMade(t *testing.T) {
	racefree.Only(t)
	tr := newTrial(t)
	tr.file("c/action.yml", "s: &s {run: x, shell: sh, if: false}\n"+composite+"    - uses: ./c\n"+
		strings.Repeat("    - *s\n", 20_000))
	res, grown := tr.grows("- uses: ./c\n", "")
	require.Equal(t, engine.Failure, res.Status)
	require.Contains(t, res.Message, "the job has more than 100000 steps")
	require.Less(t, grown, int64(150), "MiB, of 800")
}
