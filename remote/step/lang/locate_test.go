package lang

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLocatorReadsAllAcceptedTexts(t *testing.T) {
	const newer = "spec: {}\n---\nrun:\n- name: a\n  newer: x\n  env:\n    A: x ${{ vars.A }}\n"
	_, _, err := ParseStepTolerant("func.yml", []byte(newer+"  script: echo\n"))
	require.NoError(t, err)
	where := NewLocator("func.yml", []byte(newer)).Locate([]string{"a"}, PartEnv, "x ${{ vars.A }}", 6)
	require.Equal(t, "func.yml:7:14", where)
}

func TestLocatorWithoutThePlaceOfATextHasThatOfItsStep(t *testing.T) {
	l := NewLocator("job.yml", []byte("- name: a\n  script: echo\n- name: b\n  run:\n  - name: c\n    script: echo\n"))
	require.Equal(t, "job.yml:5:5", l.Locate([]string{"b", "c"}, PartEnv, "${{ vars.A }}", 4))
	require.Equal(t, "job.yml:3:3", l.Locate([]string{"b"}, PartEnv, "${{ vars.A }}", 4))
	require.Equal(t, "job.yml:1:1", l.Locate(nil, PartOutputs, "${{ vars.A }}", 4))
}

func TestLocatorWithoutAPlaceFindsNothing(t *testing.T) {
	var none *Locator
	require.Empty(t, none.Locate(nil, PartEnv, "${{ vars.A }}", 4))
	for _, text := range []string{"", "- [", strings.Repeat("#", MaxText+1), "- {script: x}"} {
		require.Empty(t, NewLocator("job.yml", []byte(text)).Locate([]string{"a", "b"}, PartEnv, "${{ vars.A }}", 4))
	}
}
