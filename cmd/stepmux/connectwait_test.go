package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Symptom: a build on a VM that was starting was lost after 1.1 s, and doctor said that builds would fail there.
func TestCommandsWaitForAVMThatStartsAndSaySo(t *testing.T) {
	t.Parallel()
	job, err := filepath.Abs("../../examples/hello.yml")
	require.NoError(t, err)
	for command, says := range map[string]string{
		"run":    "instance takes no connections: builds wait",
		"doctor": "connection refused (nothing listens there: is sshd running, is the port right?); trying again for ",
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			vm := sshtest.InProcess(t, embeddedvm.Config{})
			addr, open := sshtest.Late(t, vm.Addr)
			late := vm.Via(t, addr)
			program := runnertest.Manager(t)
			args := []string{
				command, "--instance", "ssh://" + vm.User + "@" + addr, "--identity", vm.IdentityFile,
				"--known-hosts", late.KnownHosts, "--runner-command", program, "--connect-wait", sshtest.Bound.String(),
			}
			if command == "run" {
				args = append(args, job)
			}
			var told sshtest.Log
			told.On(says, open)
			cmd := exec.CommandContext(sshtest.Within(t), program, args...)
			cmd.Stderr = &told
			out, err := cmd.Output()
			require.NoError(t, err, "%s\n%s", out, &told)
			require.Contains(t, told.String(), says)
		})
	}
}
