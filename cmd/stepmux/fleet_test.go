package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// fleetRun is a running stepmux run.
type fleetRun struct {
	program, socket, inventory, job string

	open   func() // lets the builds end
	cmd    *exec.Cmd
	stderr *sshtest.Log
	ended  chan error
}

// startFleetRun starts six builds on an inventory. They end when open is called.
func startFleetRun(t *testing.T, inventory, knownHosts string) *fleetRun {
	t.Helper()
	dir := sshtest.SocketDir(t)
	r := &fleetRun{
		program:   runnertest.Manager(t),
		socket:    filepath.Join(dir, "control.sock"),
		inventory: filepath.Join(dir, "fleet.yml"),
		job:       filepath.Join(dir, "job.yml"),
		stderr:    &sshtest.Log{},
		ended:     make(chan error, 1),
	}
	r.write(t, inventory)
	var wait string
	wait, r.open = remotetest.Gate(t, filepath.Join(dir, "gate"))
	require.NoError(t, os.WriteFile(r.job, []byte("run: [{script: '"+wait+"'}]"), 0o600))
	r.cmd = exec.Command(r.program, "run", "--inventory", r.inventory, "--known-hosts", knownHosts, "--runner-command",
		r.program,
		"--control", r.socket, "--metrics", ":0", "-v", "--builds", "6", r.job)
	r.cmd.Stderr = r.stderr
	require.NoError(t, r.cmd.Start())
	go func() { r.ended <- r.cmd.Wait() }()
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

func (r *fleetRun) write(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(r.inventory, []byte(text), 0o600))
}

// stepmux runs an operator's command and returns its output and exit code.
func (r *fleetRun) stepmux(verb string, args ...string) (string, int) {
	out, err := exec.Command(r.program, append([]string{verb, "--control", r.socket}, args...)...).CombinedOutput()
	if err != nil {
		return string(out), exitOf(err)
	}
	return string(out), 0
}

func exitOf(err error) int {
	if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // it is never wrapped
		return exit.ExitCode()
	}
	return -1
}

// awaitStatus waits for a status of ps.
func (r *fleetRun) awaitStatus(t *testing.T, what string, want func(control.Status) bool) {
	t.Helper()
	var last [1]string
	require.Eventually(t, func() bool {
		out, code := r.stepmux("ps", "--output", "json")
		last[0] = out
		var s control.Status
		return code == 0 && json.Unmarshal([]byte(out), &s) == nil && want(s)
	}, bound, 10*time.Millisecond, "%s: %v\n%s", what, &last, r.stderr)
}

func stateOf(s control.Status, id string) string {
	for _, vm := range s.Instances {
		if vm.ID == id {
			return vm.State
		}
	}
	return "gone"
}

// It was an error of the system.
//
//stepmux:faults input | Two runs, one to be named, are an error of the system; drain of an unknown VM names
//stepmux:more none
//stepmux:with cmd/stepmux.TestOperatorsSeeAndChangeARunThatIsUnderWay
func TestASocketThatHasToBeNamedIsAMatterOfUsage(t *testing.T) {
	dir := sshtest.SocketDir(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "stepmux"), 0o700))
	for _, name := range []string{"1.sock", "2.sock"} {
		listener, err := net.Listen("unix", filepath.Join(dir, "stepmux", name))
		require.NoError(t, err)
		t.Cleanup(func() { listener.Close() })
	}
	ps := exec.Command(runnertest.Manager(t), "ps")
	ps.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
	out, err := ps.CombinedOutput()
	require.Equal(t, exitUsage, exitOf(err), string(out))
	require.Contains(t, string(out), "2 runs are under way; name the socket of one with --control: ")
	require.Contains(t, string(out), "See 'stepmux ps --help'")
}

func TestOperatorsSeeAndChangeARunThatIsUnderWay(t *testing.T) {
	t.Parallel()
	first, second := sshtest.OpenSSH(t), sshtest.OpenSSH(t)
	var known []byte
	entry := map[string]string{}
	for id, s := range map[string]*sshtest.Server{"vm-1": first, "vm-2": second} {
		text, err := os.ReadFile(s.KnownHosts)
		require.NoError(t, err)
		known = append(known, text...)
		entry[id] = fmt.Sprintf("  - {id: %s, address: '%s', key: %s}\n", id, s.Addr, s.IdentityFile)
	}
	knownHosts := filepath.Join(t.TempDir(), "known_hosts")
	require.NoError(t, os.WriteFile(knownHosts, known, 0o600))
	r := startFleetRun(t, "instances:\n"+entry["vm-1"]+entry["vm-2"], knownHosts)

	r.awaitStatus(t, "two builds run, four wait", func(s control.Status) bool {
		return s.Waiting == 4 && len(s.Instances) == 2 && len(s.Instances[0].Builds) == 1 &&
			len(s.Instances[1].Builds) == 1 &&
			s.Instances[0].Conn.State == "up" && s.Instances[1].Conn.State == "up"
	})
	out, code := r.stepmux("ps", "--builds")
	require.Zero(t, code, out)
	require.Regexp(t, `(?m)^vm-1 +ready +up \d+s `, out)
	require.Regexp(t, `(?m)^[0-9a-f]+-\d +vm-2 +\d+s$`, out)
	require.Contains(t, out, "4 builds waiting for a slot")

	out, code = r.stepmux("drain", "vm-1")
	require.Zero(t, code, out)
	r.awaitStatus(t, "it drains", func(s control.Status) bool { return stateOf(s, "vm-1") == "draining" })
	out, code = r.stepmux("undrain", "vm-1")
	require.Zero(t, code, out)
	r.awaitStatus(t, "it does no more", func(s control.Status) bool { return stateOf(s, "vm-1") == "ready" })
	out, code = r.stepmux("drain", "vm-9")
	require.Equal(t, exitSystem, code)
	require.Contains(t, out, `there is no instance "vm-9", did you mean "vm-1"? The VMs there are vm-1, vm-2`)

	// It is no manager, although it listens on the same kind of socket.
	for _, args := range [][]string{{"--note", "broken"}, {"--for", "1h"}} {
		out, code = r.stepmux("drain", append(args, "vm-1")...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, out, "--note and --for are for managers")
	}
	for _, args := range [][]string{{"builds"}, {"submit", r.job}, {"logs", "-f", "1"}, {"cancel", "1"}} {
		text, err := exec.Command(r.program, append(args, "--manager", r.socket)...).CombinedOutput()
		require.Equal(t, exitSystem, exitOf(err))
		require.Contains(t, string(text), "this is a stepmux run, not a manager: only ps, drain and undrain work with it")
	}
	text, err := exec.Command(r.program, "ps", "--manager", r.socket).CombinedOutput()
	require.NoError(t, err, string(text))

	// Another run does not take its socket away.
	another := exec.Command(r.program, "run", "--control", r.socket, r.job)
	text, err = another.CombinedOutput()
	require.Equal(t, exitUsage, exitOf(err))
	require.Contains(t, string(text), "another stepmux run or manager uses it")

	r.stderr.Await(t, "/metrics")
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`).FindString(r.stderr.String())
	require.NotEmpty(t, url, r.stderr)
	scraped := get(t, url)
	require.Contains(t, scraped, "stepmux_builds_waiting 4\n")
	require.Contains(t, scraped, "stepmux_builds_running 2\n")
	require.Equal(t, "ok\n", get(t, strings.Replace(url, "/metrics", "/healthz", 1)))

	// A mistake changes nothing, and is reported.
	r.write(t, "instances:\n  - {id: vm-2, adddress: x}\n")
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGHUP))
	r.awaitStatus(t, "the mistake is told", func(s control.Status) bool {
		return strings.Contains(s.Inventory, `fleet.yml:2:16: unknown key "adddress", did you mean "address"?`) &&
			len(s.Instances) == 2
	})
	r.stderr.Await(t, "the one before stays in force")

	// Removing a VM ends its builds. The run notices the change of the file by itself.
	r.write(t, "instances:\n"+entry["vm-2"])
	r.awaitStatus(t, "it is removed",
		func(s control.Status) bool { return stateOf(s, "vm-1") == "removed" && s.Inventory == "" })
	r.open()
	require.NoError(t, <-r.ended, r.stderr)
	require.Contains(t, r.stderr.String(), "6 builds, 0 failed")
	require.NotRegexp(t, `(?m)^vm-1: connections`, r.stderr, "when its last build had ended it was forgotten")
	require.NoFileExists(t, r.socket)
	require.Equal(t, 1, first.TotalConns())
	require.Equal(t, 1, second.TotalConns())
}

func TestAKilledRunsSocketIsInNobodysWay(t *testing.T) {
	t.Parallel()
	s := sshtest.OpenSSH(t)
	inventory := fmt.Sprintf("instances: [{id: vm-1, address: '%s', key: %s}]", s.Addr, s.IdentityFile)
	r := startFleetRun(t, inventory, s.KnownHosts)
	r.awaitStatus(t, "it runs", func(s control.Status) bool { return s.Waiting == 5 })
	require.NoError(t, r.cmd.Process.Kill())
	require.Error(t, <-r.ended)
	out, code := r.stepmux("ps")
	require.Equal(t, exitSystem, code)
	require.Contains(t, out, "has died")
	r.open()
	next := exec.Command(r.program, "run", "--control", r.socket, r.job)
	text, err := next.CombinedOutput()
	require.NoError(t, err, string(text))
	require.NoFileExists(t, r.socket)
}

func get(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: bound}
	resp, err := client.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(body)
}
