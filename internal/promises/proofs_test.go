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

// A test must fail when the mechanism that it tests is taken out.
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

// overlay writes an overlay for the go command, in which a file lacks the mechanism, and returns its path.
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

// firstFailure returns the first line of a test's output that reports a failure.
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

// runTest runs a test and the programs it builds, with an overlay unless that is empty. It reports whether the test
// failed.
func runTest(t *testing.T, name, overlay string) (out string, failed bool) {
	t.Helper()
	pkg, test, _ := strings.Cut(name, ".")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	argv := []string{"go", "test", "-vet=off", "-count=1", "-timeout=2m", "-run", "^" + test + "$", "./" + pkg}
	if unshare, err := exec.LookPath("unshare"); err == nil && os.Geteuid() == 0 {
		// Without the mechanism, processes may stay. They end with their namespace.
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
