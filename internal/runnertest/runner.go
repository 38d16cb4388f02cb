// Package runnertest gives tests of the manager's end the program itself as the step runner on their
// VMs: built once per test binary, without the race detector, which would make each of the many
// processes of a test many times slower.
package runnertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// dir is where programs are built; made by the first Command, removed by Main.
var dir string

// Main runs the tests, checks that no goroutine is left and exits. TestMain calls it.
func Main(m *testing.M) { os.Exit(M{M: m}.Run()) }

// M runs tests as Main does, for a TestMain that does more.
type M struct {
	*testing.M
	// Leaks are those that no test is to blame for.
	Leaks []goleak.Option
}

// Run runs the tests and returns the exit code.
func (m M) Run() int {
	code := m.M.Run()
	if code == 0 {
		if err := goleak.Find(m.Leaks...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	_ = os.RemoveAll(dir) // in the system's directory for temporary files
	return code
}

// Command returns the step runner's command.
func Command(t testing.TB) []string {
	t.Helper()
	program, err := Program()
	require.NoError(t, err)
	return []string{program}
}

// Program builds the program, once, and returns its path.
var Program = sync.OnceValues(func() (string, error) { return build("stepmux", "cmd/stepmux") })

// GitLabRunner returns the command of a stand-in for the step runner of GitLab Runner: its package's comment
// says how far it goes.
func GitLabRunner(t testing.TB) []string {
	t.Helper()
	program, err := gitLabRunner()
	require.NoError(t, err)
	return []string{program}
}

var gitLabRunner = sync.OnceValues(func() (string, error) {
	return build("gitlab-runner", "internal/runnertest/gitlabrunner")
})

// build builds a program of this module, a small one: tests send it to VMs.
func build(name, pkg string) (string, error) {
	in, err := tempDir()
	if err != nil {
		return "", err
	}
	program := filepath.Join(in, name)
	cmd := exec.Command(
		"go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "github.com/stepmux/stepmux/"+pkg,
	)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return program, nil
}

// tempDir makes dir, once.
var tempDir = sync.OnceValues(func() (string, error) {
	var err error
	dir, err = os.MkdirTemp("", "runnertest")
	return dir, err
})
