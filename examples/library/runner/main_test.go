package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestMain(m *testing.M) { runnertest.Main(m) }

// A build whose step failed without an exit code ended with code 0, as a success does.
func TestTheExitCodeOfAFailedBuildIsNeverThatOfASuccess(t *testing.T) {
	end, err := runnertest.Program()
	require.NoError(t, err)
	vm := sshtest.InProcess(t, embeddedvm.Config{})
	dir := t.TempDir()
	program := filepath.Join(dir, "runner")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build compiles its packages
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for steps, want := range map[string]int{
		"run: [{script: 'exit 0'}]":                         0,
		"run: [{script: 'exit 7'}]":                         7,
		"run: [{script: 'echo x >\"${{ output_file }}\"'}]": 1, // the step fails, though its process did not
	} {
		file := filepath.Join(dir, "steps.yml")
		require.NoError(t, os.WriteFile(file, []byte(steps), 0o600))
		cmd := exec.CommandContext(sshtest.Within(t), program, "--vm", vm.User+"@"+vm.Addr, "--identity", vm.IdentityFile,
			"--known-hosts", vm.KnownHosts, "--command", end, file)
		out, _ := cmd.CombinedOutput() // the exit code is compared below
		require.Equal(t, want, cmd.ProcessState.ExitCode(), "%s: %s", steps, out)
	}
}
