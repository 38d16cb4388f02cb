package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/runnertest"
	"github.com/stepmux/stepmux/internal/sshtest"
)

func TestMain(m *testing.M) { runnertest.Main(m) }

func TestTheRunnerRunsABuildsSteps(t *testing.T) {
	program := filepath.Join(t.TempDir(), "runner")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build compiles its packages
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	for name, s := range map[string]*sshtest.Server{
		"in-process": sshtest.InProcess(t, embeddedvm.Config{}), "OpenSSH": sshtest.OpenSSH(t),
	} {
		t.Run(name, func(t *testing.T) {
			for script, code := range map[string]int{"echo hello from a step": 0, "echo hello from a step; exit 7": 7} {
				file := filepath.Join(t.TempDir(), "steps.yml")
				steps := "run:\n  - name: hello\n    script: " + script + "\n"
				require.NoError(t, os.WriteFile(file, []byte(steps), 0o600))
				cmd := exec.CommandContext(t.Context(), program, "--vm", s.User+"@"+s.Addr, "--identity", s.IdentityFile,
					"--known-hosts", s.KnownHosts, "--command", runnertest.Command(t)[0], file)
				var stdout, stderr sshtest.Log
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				_ = cmd.Run() // its exit code is checked
				require.Equal(t, code, cmd.ProcessState.ExitCode(), stderr.String())
				require.Equal(t, "hello from a step\n", stdout.String())
			}
		})
	}
}
