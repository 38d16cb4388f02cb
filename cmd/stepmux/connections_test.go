package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// proxied returns a VM behind a proxy, which counts connections and can stall them.
func proxied(t *testing.T) (*sshtest.Server, *sshtest.TCPProxy) {
	t.Helper()
	s := sshtest.InProcess(t, embeddedvm.Config{})
	proxy := sshtest.Proxy(t, s.Addr)
	return s.Via(t, proxy.Addr()), proxy
}

// inventoryOf writes an inventory of VMs.
func inventoryOf(t *testing.T, capacity int, vms ...*sshtest.Server) string {
	t.Helper()
	text := "instances:\n"
	for i, s := range vms {
		text += fmt.Sprintf("  - {id: vm-%d, address: %q, user: %s, key: %s, capacity: %d, runner: %s, temp_dir: %s, "+
			"host_keys: [%q]}\n", i+1, s.Addr, s.User, s.IdentityFile, capacity, runnertest.Command(t)[0],
			sshtest.SocketDir(t), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.HostKey))))
	}
	file := filepath.Join(t.TempDir(), "fleet.yml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// scriptFile writes a script for builds.
func scriptFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "build.sh")
	require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o600))
	return file
}

// begin starts the program. end waits for it, and returns its exit code and its output.
func begin(t *testing.T, args ...string) (end func() (code int, stdout, stderr string)) {
	t.Helper()
	cmd := exec.CommandContext(sshtest.Within(t), runnertest.Manager(t), args...)
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	require.NoError(t, cmd.Start())
	return func() (int, string, string) {
		_ = cmd.Wait() // its exit code tells
		return cmd.ProcessState.ExitCode(), out.String(), messages.String()
	}
}

func TestAConnectionOfARunIsReplacedAtItsAge(t *testing.T) {
	t.Parallel()
	vm, proxy := proxied(t)
	// The second build begins when the connection has its age. A tenth of it is left to chance.
	build := scriptFile(t, "sleep 1.1")
	code, _, stderr := begin(t, "run", "--inventory", inventoryOf(t, 1, vm), "--builds", "2", "--max-age", "1s", build)()
	require.Equal(t, 0, code, stderr)
	require.Equal(t, 2, proxy.TotalConns())
}

func TestAConnectionOfARunIsClosedWhenItIsIdle(t *testing.T) {
	t.Parallel()
	one, first := proxied(t)
	two, second := proxied(t)
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	build := scriptFile(t, `[ "$CI_NODE_INDEX" = 2 ] || `+wait)
	end := begin(t, "run", "--inventory", inventoryOf(t, 1, one, two), "--builds", "2", "--idle-timeout", "1s", build)
	require.Eventually(t, func() bool {
		return first.TotalConns()+second.TotalConns() == 2 && first.Conns()+second.Conns() == 1
	}, sshtest.Bound, 10*time.Millisecond, "the connection of the VM without a build is not closed")
	open()
	code, _, stderr := end()
	require.Equal(t, 0, code, stderr)
}

func TestConnectionsOfAManagerHaveAnAgeAndAnIdleTime(t *testing.T) {
	t.Parallel()
	vm, proxy := proxied(t)
	var stderr sshtest.Log
	socket := filepath.Join(sshtest.SocketDir(t), "m.sock")
	cmd := exec.Command(runnertest.Manager(t), "manager", "--state", t.TempDir(), "--socket", socket, "--inventory",
		inventoryOf(t, 1, vm), "--idle-timeout", "1s", "--max-age", "2s")
	cmd.Stderr = &stderr
	runnertest.StartManager(t, cmd, sshtest.Bound, &stderr)
	t.Cleanup(func() { _, _ = cmd.Process.Signal(os.Interrupt), cmd.Wait() }) // it has done its work
	submit := func(script string) {
		steps := filepath.Join(t.TempDir(), "steps.yml")
		require.NoError(t, os.WriteFile(steps, []byte("run: [{script: "+script+"}]\n"), 0o600))
		code, out, stderr := begin(t, "submit", "--manager", socket, "--wait", steps)()
		require.Equal(t, 0, code, out+stderr)
	}
	idle := func() {
		require.Eventually(t, func() bool { return proxy.Conns() == 0 }, sshtest.Bound, 10*time.Millisecond,
			"the connection is not closed: %v", &stderr)
	}
	submit("echo one")
	idle()
	submit("sleep 2.1")
	require.Equal(t, 2, proxy.TotalConns(), "an idle connection is closed")
	submit("echo two")
	require.Equal(t, 3, proxy.TotalConns(), "a connection that has its age takes no build")
}

// The error tells how long the VM was silent, which would be half a minute without the flags.
func TestALinkThatIsDeadIsNoticedInTheTimeOfItsFlags(t *testing.T) {
	t.Parallel()
	vm, proxy := proxied(t)
	up := filepath.Join(t.TempDir(), "up")
	build := scriptFile(t, "touch "+up+"; sleep 600")
	end := begin(t, "run", "--inventory", inventoryOf(t, 1, vm), "--keepalive-interval", "1s", "--keepalive-timeout", "5s",
		build)
	require.Eventually(t, func() bool { return exists(up) }, sshtest.Bound, 10*time.Millisecond)
	proxy.Stall()
	code, _, stderr := end()
	require.Equal(t, 3, code, stderr)
	found := regexp.MustCompile(`no sign of life for (\S+?s)\b`).FindStringSubmatch(stderr)
	require.NotNil(t, found, stderr)
	silent, err := time.ParseDuration(found[1])
	require.NoError(t, err)
	require.Less(t, silent, 15*time.Second)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// By the route session a build has two sessions, so builds run one after the other.
func TestARunTakesNoMoreSessionsThanItsFlagAllows(t *testing.T) {
	t.Parallel()
	vm := sshtest.InProcess(t, embeddedvm.Config{})
	alone := filepath.Join(t.TempDir(), "alone")
	code, stdout, stderr := begin(t, "run", "--inventory", inventoryOf(t, 4, vm), "--route", "session", "--builds", "4",
		"--session-limit", "3", scriptFile(t, "set -e; mkdir "+alone+"; sleep 0.1; rmdir "+alone))()
	require.Equal(t, 0, code, stdout+stderr)
}

// The step runner takes longer for its end than the flag allows, and less than it may have without the flag.
func TestTheEndOfABuildTakesTheTimeOfItsFlag(t *testing.T) {
	t.Parallel()
	vm := sshtest.InProcess(t, embeddedvm.Config{})
	real := runnertest.Command(t)[0]
	slow := filepath.Join(t.TempDir(), "stepmux")
	require.NoError(t, os.WriteFile(slow, []byte(`#!/bin/sh
[ "$1 $2" = "steps serve" ] || exec `+real+` "$@"
`+real+` "$@"
sleep 5
`), 0o755)) // a program
	fleet := inventoryOf(t, 1, vm)
	text, err := os.ReadFile(fleet)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(fleet, []byte(strings.Replace(string(text), real, slow, 1)), 0o600))
	code, stdout, stderr := begin(t, "run", "--inventory", fleet, "--route", "session", "--stop-timeout", "1s",
		scriptFile(t, "echo up"))()
	require.Equal(t, 0, code, stdout+stderr)
	require.Contains(t, stderr, "it is not gone after its time")
}
