package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// ordinary returns a command that has no more rights than an ordinary user: root could write in any directory.
func ordinary(argv ...string) *exec.Cmd {
	if os.Geteuid() == 0 {
		argv = append([]string{"setpriv", "--bounding-set=-dac_override,-fowner"}, argv...)
	}
	return exec.Command(argv[0], argv[1:]...)
}

// A cache could be removed neither by its user's rm nor by a command of ours.
//
//stepmux:faults fetch | The cache of steps cannot be removed by its user, and its content cannot be seen or checked
//stepmux:with remote/step/fetch.TestPruneRemovesUnusedComponents
//stepmux:with remote/step/fetch.TestVerifyReportsAndRemovesChangedComponents
func TestTheCacheIsListedVerifiedAndPrunedHereAndOnAVM(t *testing.T) {
	e := newExample(t)
	require.Equal(t, "0 components in the cache, 0B\n", e.well("cache", "list"))
	e.well(append([]string{"local"}, e.vars...)...)
	dir := filepath.Join(e.dir, ".cache", "stepmux-steps")
	listed := e.well("cache", "list")
	require.Regexp(t, `^3 components in the cache, [\d.]+KiB\n`, listed)
	const about = `(?m)^  sha256:[0-9a-f]{12}\.*  +\d+B +\d{4}-\d\d-\d\d \d\d:\d\d +git `
	require.Regexp(t, about+e.sources.Git+` [0-9a-f]{40}$`, listed)

	s := sshtest.OpenSSH(t)
	vm := []string{
		"--cache-dir", dir, "--instance", "vm-1=ssh://" + s.User + "@" + s.Addr, "--identity", s.IdentityFile,
		"--known-hosts", s.KnownHosts,
	}
	onVM := append(vm[:len(vm):len(vm)], "--runner-command", runnertest.Command(t)[0])
	var here, there cacheReport
	require.NoError(t, json.Unmarshal([]byte(e.well("cache", "list", "--output", "json")), &here))
	listed = e.well(append([]string{"cache", "list", "--output", "json"}, onVM...)...)
	require.NoError(t, json.Unmarshal([]byte(listed), &there))
	require.Equal(t, "vm-1", there.Instance)
	require.Len(t, here.Components, 3)
	require.Equal(t, here.Components, there.Components)

	files, err := filepath.Glob(filepath.Join(dir, "v1", "comp", "*", "tree", "*.yml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	require.NoError(t, os.Chmod(files[0], 0o600))
	out, stderr, code := e.run(append([]string{"cache", "verify"}, onVM...)...)
	require.Equal(t, 1, code, stderr)
	require.Contains(t, out, "vm-1: 1 component changed")
	require.Equal(t, "0 components changed, 0B\n", e.well("cache", "verify"))

	require.Equal(t, "vm-1: 0 components removed, 0B\n",
		e.well(append([]string{"cache", "prune", "--unused-for", "1h"}, onVM...)...))
	pruned, err := ordinary(e.program, "cache", "prune", "--cache-dir", dir).CombinedOutput()
	require.NoError(t, err, "%s", pruned)
	require.Contains(t, string(pruned), "2 components removed")
	removed, err := ordinary("rm", "-rf", dir).CombinedOutput()
	require.NoError(t, err, "%s", removed)
	require.NoDirExists(t, dir)

	out, stderr, code = e.run(append([]string{"cache", "list", "--runner-command", "/bin/echo"}, vm...)...)
	require.Equal(t, exitSystem, code)
	require.Empty(t, out, "the cache is unknown")
	require.Contains(t, stderr, "vm-1: /bin/echo steps cache list --cache-dir "+dir+": the program prints no report")
}

//stepmux:faults fetch | The report of a VM about its cache forges lines on the terminal
func TestTheReportOfAVMIsShownHarmless(t *testing.T) {
	e := newExample(t)
	s := sshtest.OpenSSH(t)
	script := filepath.Join(e.dir, "stepmux")
	require.NoError(t, os.WriteFile(script, []byte(`#!/bin/sh
cat <<\EOF
Welcome!
{"components":[{"tree":"\u001b]0;x\u0007","sources":[{"location":"a\nvm-2: forged"}]}],"error":"\u001b[2J\nforged"}
EOF
exit 3
`), 0o700))
	out, stderr, code := e.run("cache", "list", "--instance", "ssh://"+s.User+"@"+s.Addr, "--identity", s.IdentityFile,
		"--known-hosts", s.KnownHosts, "--runner-command", script)
	require.Equal(t, exitSystem, code)
	require.NotContains(t, out+stderr, "\x1b")
	require.NotContains(t, out+stderr, "\x07")
	require.NotContains(t, out, "\nvm-2")
	require.NotContains(t, stderr, "\nforged")
	require.Contains(t, stderr, "forged")
	_, stderr, code = e.run("cache", "list", "--identity", s.IdentityFile)
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "--identity needs a VM")
}

// The program that a run had uploaded was not found: its path has a checksum in it.
//
//stepmux:faults fetch | `stepmux cache` does not find the program that `run --bootstrap` uploaded
func TestTheCacheOfAVMIsListedByTheProgramThatBootstrapUploaded(t *testing.T) {
	e := newExample(t)
	e.well(append([]string{"local"}, e.vars...)...)
	dir := filepath.Join(e.dir, ".cache", "stepmux-steps")
	uploads := filepath.Join(t.TempDir(), "cache")
	s := sshtest.OpenSSH(t, "SetEnv SHLVL=1 XDG_CACHE_HOME="+uploads)
	vm := []string{
		"--instance", "vm-1=ssh://" + s.User + "@" + s.Addr, "--identity", s.IdentityFile, "--known-hosts", s.KnownHosts,
		"--runner-command", "/no/such/stepmux",
	}
	cached := append(vm[:len(vm):len(vm)], "--cache-dir", dir)
	_, stderr, code := e.run(append([]string{"cache", "list"}, cached...)...)
	require.Equal(t, exitSystem, code)
	require.Contains(t, stderr, "--bootstrap finds one that was uploaded")

	hello, err := filepath.Abs("../../examples/hello.yml")
	require.NoError(t, err)
	e.well(append([]string{"run", "--bootstrap", hello}, vm...)...)
	programs, err := filepath.Glob(filepath.Join(uploads, "stepmux", "*", "stepmux"))
	require.NoError(t, err)
	require.Len(t, programs, 1)
	before, err := os.Stat(programs[0])
	require.NoError(t, err)

	cached = append(cached, "--bootstrap")
	require.Regexp(t, `^vm-1: 3 components in the cache, `, e.well(append([]string{"cache", "list"}, cached...)...))
	require.Regexp(t, `^vm-1: 0 components changed, `, e.well(append([]string{"cache", "verify"}, cached...)...))
	require.Regexp(t, `^vm-1: 3 components removed, `, e.well(append([]string{"cache", "prune"}, cached...)...))
	after, err := os.Stat(programs[0])
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "it was uploaded once")
	require.Equal(t, before.ModTime(), after.ModTime())

	require.NoError(t, os.RemoveAll(filepath.Join(uploads, "stepmux")))
	require.Regexp(t, `^vm-1: 0 components in the cache, `, e.well(append([]string{"cache", "list"}, cached...)...))
	require.FileExists(t, programs[0], "it is uploaded as for a run")

	for _, flag := range []string{"--bootstrap", "--bootstrap-binary=linux/amd64=x", "--runner-command=x"} {
		_, stderr, code = e.run("cache", "list", flag)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, " needs a VM")
	}
}
