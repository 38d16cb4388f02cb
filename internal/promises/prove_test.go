package promises

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// proofLine introduces a proof in bench/prove; proofFunc begins its function.
	proofLine = regexp.MustCompile(`(?m)^# ([a-z-]+) \| [^|\n]+ \| [^|\n]+ \| [^|\n]+$`)
	proofFunc = regexp.MustCompile(`(?m)^([a-z-]+)\(\) \{$`)
	// proofNamed is how a page, a comment or a script names a proof.
	proofNamed = regexp.MustCompile(`make prove WHAT=([a-z-]+)`)
)

func TestEachProofHasALineOfTheTableAndAFunction(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(root, "bench", "prove"))
	require.NoError(t, err)
	var lines, funcs []string
	for _, m := range proofLine.FindAllStringSubmatch(string(script), -1) {
		lines = append(lines, m[1])
	}
	for _, m := range proofFunc.FindAllStringSubmatch(string(script), -1) {
		if m[1] != "rig" && m[1] != "names" {
			funcs = append(funcs, m[1])
		}
	}
	require.Greater(t, len(lines), 15)
	require.Equal(t, lines, funcs)
	proofs := map[string]bool{}
	for _, name := range lines {
		proofs[name] = true
	}
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(file) != ".go" && filepath.Ext(file) != ".md" && filepath.Base(file) != "run":
			return nil
		}
		text, err := os.ReadFile(file)
		for _, m := range proofNamed.FindAllStringSubmatch(string(text), -1) {
			require.Contains(t, lines, m[1], "%s names a proof that bench/prove does not have", file)
		}
		return err
	}))
}

func TestAProofIsRunByItsNameAndTheOthersAreListed(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("part missing: bash")
	}
	list, err := exec.CommandContext(t.Context(), filepath.Join(root, "bench", "prove")).CombinedOutput()
	require.NoError(t, err, "%s", list)
	for _, want := range []string{"manager-faults", "takes D=20m\n", "needs ansible-core"} {
		require.Contains(t, string(list), want)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "bench", "prove"), "names").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `there is no proof "names"; there are: manager-faults cluster `)
}
