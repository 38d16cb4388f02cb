package lang

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Symptom: a script that was called by its long name went on after a line that failed, without a warning.
func TestEachWayToWriteAScriptIsVetted(t *testing.T) {
	for text, where := range map[string]string{
		"- script: |\n    a\n    b":                                        "f:1:11",
		"- run:\n    - script: |\n        a\n        b":                    "f:2:15",
		"- step: builtin://script\n  inputs: {script: \"a\\nb\"}":          "f:2:20",
		"- step: builtin://script\n  inputs: {shell: sh, script: [a, b]}":  "f:2:31",
		"- step: builtin://script\n  inputs: {script: \"set -e\\na\\nb\"}": "",
		"- step: builtin://script\n  inputs: {script: [set -e, a, b]}":     "",
		"- step: ./other\n  inputs: {script: \"a\\nb\"}":                   "",
	} {
		_, warnings, err := Vet("f", []byte(text), false)
		require.NoError(t, err, text)
		if where == "" {
			require.Empty(t, warnings, text)
			continue
		}
		require.Len(t, warnings, 1, text)
		require.Equal(t, where+": "+goesOnWarning, warnings[0].Error(), text)
	}
}

func TestTheWarningsAboutOneTextAreBounded(t *testing.T) {
	text := strings.Repeat("- script: \"a\\nb\"\n", 50)
	_, warnings, err := Vet("f", []byte(text), false)
	require.NoError(t, err)
	require.Len(t, warnings, maxWarnings+1)
	require.Equal(t, goesOnWarning, warnings[maxWarnings-1].Message)
	require.Equal(t, fmt.Sprintf("f:%d:11: from here on there are more such warnings: %d", maxWarnings+1, 50-maxWarnings),
		warnings[maxWarnings].Error())
}
