package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// apartVMs are VMs that share no cache. The test counts what they get, and can cut one off.
type apartVMs struct {
	inventory, knownHosts string
	got                   [2]atomic.Int64 // bytes, by VM
	proxies               [2]*sshtest.TCPProxy
}

func startApartVMs(t *testing.T) *apartVMs {
	t.Helper()
	v, text := &apartVMs{}, ""
	var hosts []byte
	for i := range v.got {
		s := sshtest.OpenSSH(t, "SetEnv SHLVL=1 XDG_CACHE_HOME="+t.TempDir())
		counted := sshtest.Listen(t, "tcp", "127.0.0.1:0", func(client net.Conn) {
			defer client.Close()
			server, err := net.Dial("tcp", s.Addr)
			if err != nil {
				return
			}
			defer server.Close()
			var copying sync.WaitGroup
			copying.Go(func() {
				n, _ := io.Copy(server, struct{ io.Reader }{client})
				v.got[i].Add(n)
				server.Close()
			})
			_, _ = io.Copy(client, struct{ io.Reader }{server})
			client.Close()
			copying.Wait()
		})
		v.proxies[i] = sshtest.Proxy(t, counted)
		via := s.Via(t, v.proxies[i].Addr())
		known, err := os.ReadFile(via.KnownHosts)
		require.NoError(t, err)
		hosts = append(hosts, known...)
		if text == "" {
			text = "instances:\n"
		}
		text += fmt.Sprintf("  - {id: vm-%d, address: %q, user: %q, key: %q, runner: %q, capacity: 1}\n", i+1, via.Addr,
			s.User, s.IdentityFile, runnertest.Manager(t))
	}
	dir := t.TempDir()
	v.inventory, v.knownHosts = filepath.Join(dir, "fleet.yml"), filepath.Join(dir, "known_hosts")
	require.NoError(t, os.WriteFile(v.inventory, []byte(text), 0o600))
	require.NoError(t, os.WriteFile(v.knownHosts, hosts, 0o600))
	return v
}

// pipeline returns a command that runs a pipeline on the VMs, with results in JSON.
func (v *apartVMs) pipeline(t *testing.T, text string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".gitlab-ci.yml"), []byte(text), 0o600))
	cmd := exec.Command(runnertest.Manager(t), "run", "--inventory", v.inventory, "--known-hosts", v.knownHosts,
		"--isolation", "off", "--output", "json", ".gitlab-ci.yml")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir())
	return cmd
}

// jobOf returns the job and the VM in a line of the results. Both are empty in the line of the pipeline.
func jobOf(t *testing.T, line []byte) (job, vm string) {
	t.Helper()
	var result struct{ File, Instance string }
	require.NoError(t, json.Unmarshal(line, &result))
	return strings.TrimPrefix(result.File, ".gitlab-ci.yml "), result.Instance
}

// An artifact and a cache of 1 MiB each go once to a VM that lacks them, however many jobs there need them, and not at
// all to the one on which they were made.
func TestArtifactsAreSentOnceToAVM(t *testing.T) {
	t.Parallel()
	v := startApartVMs(t)
	cmd := v.pipeline(t, `
make:
  stage: build
  script: [head -c 1048576 /dev/urandom > made, head -c 1048576 /dev/urandom > kept]
  artifacts: {paths: [made]}
  cache: {paths: [kept]}
use: {parallel: 6, script: [test "$(cat made kept | wc -c)" = 2097152], cache: {paths: [kept]}}
`)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	used, maker := map[string]bool{}, ""
	for line := range bytes.Lines(out) {
		job, vm := jobOf(t, line)
		if used[vm] = true; job == "make" {
			maker = vm
		}
	}
	require.Len(t, used, 3, "both VMs, and the line of the pipeline: %s", out)
	const mib = 1 << 20
	for i := range v.got {
		got := v.got[i].Load()
		if maker == fmt.Sprintf("vm-%d", i+1) {
			require.Less(t, got, int64(mib/2), "it has both")
			continue
		}
		require.Greater(t, got, int64(2*mib))
		require.Less(t, got, int64(2*mib+mib/2), "it needs each once")
	}
}

// The artifacts of a VM that is lost are on this machine.
func TestAPipelineGoesOnWithoutAVM(t *testing.T) {
	t.Parallel()
	v := startApartVMs(t)
	wait, open := remotetest.Gate(t, filepath.Join(sshtest.SocketDir(t), "gate"))
	cmd := v.pipeline(t, `
make: {stage: build, script: [echo made > made], artifacts: {paths: [made]}}
hold: {stage: build, script: ['`+wait+`']}
use: {parallel: 2, script: [cat made]}
`)
	stderr := &sshtest.Log{}
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines, ended := bufio.NewScanner(stdout), map[string]string{}
	for lines.Scan() {
		job, vm := jobOf(t, lines.Bytes())
		if ended[job] = vm; job == "make" {
			v.proxies[vm[len(vm)-1]-'1'].Close()
			open()
		}
	}
	require.NoError(t, cmd.Wait(), stderr)
	require.NotEqual(t, ended["make"], ended["hold"])
	require.Equal(t, ended["hold"], ended["use 1/2"])
	require.Equal(t, ended["hold"], ended["use 2/2"])
}

func TestAJobWhoseVMIsLostIsRetried(t *testing.T) {
	t.Parallel()
	v := startApartVMs(t)
	wait, open := remotetest.Gate(t, filepath.Join(sshtest.SocketDir(t), "gate"))
	cmd := v.pipeline(t, "hold: {retry: 1, script: [echo begun, '"+wait+"']}\n")
	stdout, stderr := &sshtest.Log{}, &sshtest.Log{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	require.Eventually(t, func() bool { return strings.Contains(stderr.String(), "\nbegun\n") }, bound, time.Millisecond)
	lost := v.proxies[0]
	if lost.Conns() == 0 {
		lost = v.proxies[1]
	}
	lost.Close()
	open()
	require.NoError(t, cmd.Wait(), stderr)
	var lines []string
	for line := range strings.Lines(stdout.String()) {
		lines = append(lines, line)
	}
	require.Len(t, lines, 3)
	require.Contains(t, lines[0], `"reason":"runner_system_failure"`)
	require.Contains(t, lines[1], `"status":"success"`)
	require.Contains(t, lines[2], `"name":"hold","stage":"test","status":"success","attempts":2`)
}

// Symptom: a job whose time was up while its VM was connected to had failed with exit code 3, and a shorter time had
// the exit code 124.
func TestAJobThatIsLateBeforeItsFirstStepHasTimedOut(t *testing.T) {
	for _, tt := range []struct {
		err  instance.BuildError
		want standalone.Reason
	}{
		{instance.BuildError{Reason: instance.RunnerSystemFailure, Late: true}, standalone.TimedOut},
		{instance.BuildError{Reason: instance.JobExecutionTimeout}, standalone.TimedOut},
		{instance.BuildError{Reason: instance.RunnerSystemFailure}, standalone.System},
		{instance.BuildError{Reason: instance.ScriptFailure, ExitCode: 4}, standalone.Script},
	} {
		require.Equal(t, tt.want, reportOnVM(batch.Report{Err: &tt.err}).Reason)
	}
}
