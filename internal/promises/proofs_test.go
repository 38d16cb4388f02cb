//go:build proofs

package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A test that does not fail without what it tests is none.
func TestWithoutItsMechanismAPromisesTestFails(t *testing.T) {
	for _, m := range mechanisms {
		t.Run(strings.ReplaceAll(m.test, "/", ":"), func(t *testing.T) {
			out, failed := runTest(t, m.test, "")
			require.False(t, failed, "the test fails with everything in its place:\n%s", out)
			out, failed = runTest(t, m.test, m.overlay(t))
			require.True(t, failed, "%s\nthe test passes without %q of %s:\n%s", m.promise, m.code, m.file, out)
			t.Logf("%s: without `%s` it fails: %s", m.promise, m.code, firstFailure(out))
		})
	}
}

// overlay returns the path of what tells the go command to read a file without the mechanism.
func (m mechanism) overlay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	original, err := filepath.Abs(filepath.Join(root, m.file))
	require.NoError(t, err)
	source, err := os.ReadFile(original)
	require.NoError(t, err)
	changed := filepath.Join(dir, filepath.Base(m.file))
	require.NoError(t, os.WriteFile(changed, []byte(strings.Replace(string(source), m.code, m.without, 1)), 0o600))
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	require.NoError(t, err)
	overlay := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, data, 0o600))
	return overlay
}

// firstFailure returns the line of a test's output that says what failed.
func firstFailure(out string) string {
	for line := range strings.Lines(out) {
		for _, mark := range []string{"Error:", "panic:", "_test.go:"} {
			if strings.Contains(line, mark) {
				return strings.Join(strings.Fields(line), " ")
			}
		}
	}
	return "without a word"
}

// runTest runs a test, and the programs it builds, with an overlay if there is one, and reports whether it failed.
func runTest(t *testing.T, name, overlay string) (out string, failed bool) {
	t.Helper()
	pkg, test, _ := strings.Cut(name, ".")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	argv := []string{"go", "test", "-vet=off", "-count=1", "-timeout=2m", "-run", "^" + test + "$", "./" + pkg}
	if unshare, err := exec.LookPath("unshare"); err == nil && os.Geteuid() == 0 {
		// Without what ends them processes stay: then they go with their namespace.
		argv = append([]string{unshare, "--pid", "--fork", "--kill-child", "--mount-proc"}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = root
	if overlay != "" {
		cmd.Env = append(os.Environ(), fmt.Sprintf("GOFLAGS=%s -overlay=%s", os.Getenv("GOFLAGS"), overlay))
	}
	cmd.WaitDelay = 10 * time.Second
	data, err := cmd.CombinedOutput()
	out = string(data)
	require.NotContains(t, out, "[build failed]")
	require.NotContains(t, out, "no tests to run")
	require.NotContains(t, out, "--- SKIP")
	return out, err != nil
}
