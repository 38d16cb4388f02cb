package commands_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// alone puts the VM's end into dir, without its program for the network, and returns its path and that program's.
func alone(t *testing.T, dir string) (vm, fetch string) {
	t.Helper()
	program, err := runnertest.Program()
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	vm = filepath.Join(dir, "stepmux")
	runnertest.Copy(t, program, vm)
	return vm, filepath.Join(filepath.Dir(program), "stepmux-fetch")
}

// lists runs `steps cache list`.
func lists(t *testing.T, vm string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), vm, append(args, "steps", "cache", "list")...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	text, err := cmd.CombinedOutput()
	if err != nil {
		require.IsType(t, &exec.ExitError{}, err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

func TestTheProgramForTheNetworkMustBeTheOneOfTheBuild(t *testing.T) {
	dir := t.TempDir()
	vm, fetch := alone(t, dir)
	code, out := lists(t, vm)
	require.Equal(t, 3, code)
	require.Contains(t, out, "stepmux: steps cache: find the program for the network: open "+dir+"/stepmux-fetch: "+
		"no such file or directory (put the stepmux-fetch of the same release beside stepmux, or let stepmux run "+
		"--bootstrap put both there)\n")
	helper := exec.CommandContext(t.Context(), vm, "cache-extractor", "--file", "x")
	require.Error(t, helper.Run())
	require.Equal(t, 1, helper.ProcessState.ExitCode(), "as the scripts of GitLab's manager know it")

	there := filepath.Join(dir, "stepmux-fetch")
	require.NoError(t, os.WriteFile(there, []byte("#!/bin/sh\necho harm\n"), 0o700))
	code, out = lists(t, vm)
	require.Equal(t, 3, code)
	require.Contains(t, out, there+" has changed, or is of another release: its SHA-256 is ")
	require.NotContains(t, out, "harm\n")

	require.NoError(t, os.Remove(there))
	runnertest.Copy(t, fetch, there)
	code, out = lists(t, vm)
	require.Equal(t, 0, code, out)
	require.JSONEq(t, `{"components":[]}`, out)
	code, out = lists(t, vm, "--as", "gitlab-runner")
	require.Equal(t, 0, code, out)
}

func TestWhereAManagerHasPutTheVMsEndItsProgramForTheNetworkIsWaitedFor(t *testing.T) {
	cmd, fetch, out := waits(t)
	require.NoError(t, cmd.Start())
	runnertest.Copy(t, fetch, filepath.Join(filepath.Dir(cmd.Path), "stepmux-fetch"))
	require.NoError(t, cmd.Wait(), out.String())
	require.JSONEq(t, `{"components":[]}`, out.String())
}

// Symptom: a job that was canceled while a command started went on until it was killed.
func TestASignalEndsTheWaitForTheProgramForTheNetwork(t *testing.T) {
	cmd, _, out := waits(t)
	require.NoError(t, cmd.Start())
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.EqualError(t, cmd.Wait(), "signal: terminated", out.String())
}

// waits returns a command of a VM's end that waits for its program for the network, the file of that, and its output.
func waits(t *testing.T) (cmd *exec.Cmd, fetch string, out *strings.Builder) {
	t.Helper()
	vm, fetch := alone(t, filepath.Join(t.TempDir(), "0123456789abcdef"))
	cmd = exec.CommandContext(t.Context(), vm, "steps", "cache", "list")
	cmd.Env = []string{"HOME=" + t.TempDir()}
	out = new(strings.Builder)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, fetch, out
}
