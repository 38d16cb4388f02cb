package stockmanager_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/testing/stockmanager"
)

// vm is a machine with a stock sshd, and with stepmux-vm under the name gitlab-runner.
type vm struct {
	*stockmanager.Manager
	server  *sshtest.Server
	program string // stepmux-vm, a file of this test's own
	builds  string // for build directories
}

// newVM starts a VM whose sockets are in temp, which must be empty. env are more variables of its sessions.
func newVM(t *testing.T, temp string, env ...string) *vm {
	t.Helper()
	bin := t.TempDir()
	program := filepath.Join(bin, "stepmux-vm")
	built, err := runnertest.Program()
	require.NoError(t, err)
	runnertest.Copy(t, built, program)
	const fetch = "stepmux-fetch"
	runnertest.Copy(t, filepath.Join(filepath.Dir(built), fetch), filepath.Join(bin, fetch))
	require.NoError(t, os.Symlink("stepmux-vm", filepath.Join(bin, "gitlab-runner")))
	server := sshtest.OpenSSH(t, "SetEnv SHLVL=1 PATH="+bin+":/usr/bin:/bin "+strings.Join(env, " "))
	v := &vm{server: server, program: program, builds: t.TempDir()}
	v.Manager = &stockmanager.Manager{Addr: server.Addr, SSH: server.ClientConfig(), Temp: temp}
	t.Cleanup(func() { v.requireNothingLeft(t) })
	return v
}

// install makes the script a program of the VM.
func (v *vm) install(t *testing.T, name, script string) {
	t.Helper()
	path := filepath.Join(filepath.Dir(v.program), name)
	require.NoError(t, os.WriteFile(path+".new", []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	require.NoError(t, os.Rename(path+".new", path))
}

// job returns a job with one step, a script.
func (v *vm) job(id, script string) stockmanager.Job {
	return stockmanager.Job{
		ID: id, BuildDir: filepath.Join(v.builds, id), Run: fmt.Sprintf(`[{"name":"step","script":%q}]`, script),
	}
}

// run runs the job, which must come to an end, and returns its result and log.
func (v *vm) run(t *testing.T, job stockmanager.Job) (stockmanager.Result, string) {
	t.Helper()
	log := new(sshtest.Log)
	job.Log = log
	result, err := v.Execute(sshtest.Within(t), job)
	require.NoError(t, err, "log: %s", log)
	return result, log.String()
}

// start runs the job in a goroutine and returns once its log has text. wait returns its result; abort ends the
// manager's work on it.
func (v *vm) start(
	t *testing.T, job stockmanager.Job, text string,
) (wait func() (stockmanager.Result, error), abort func()) {
	t.Helper()
	log := new(sshtest.Log)
	job.Log = log
	var result stockmanager.Result
	var err error
	ended := make(chan struct{})
	ctx, cancel := context.WithTimeout(context.Background(), sshtest.Bound)
	go func() {
		defer close(ended)
		result, err = v.Execute(ctx, job)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	log.Await(t, text)
	return func() (stockmanager.Result, error) {
		<-ended
		return result, err
	}, cancel
}

// requireNothingLeft waits until no directory and no process of the VM's program is left.
func (v *vm) requireNothingLeft(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return len(remotetest.Names(t, v.Temp)) == 0 && len(v.processes(t)) == 0 },
		sshtest.Bound, 20*time.Millisecond, "something is left")
}

// processes returns the processes on the VM that a job has brought: of the program, and with the name of the VM's
// directory in their command lines, which are the values.
func (v *vm) processes(t *testing.T) map[int]string {
	t.Helper()
	found := map[int]string{}
	for _, name := range remotetest.Names(t, "/proc") {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, err := os.ReadFile(filepath.Join("/proc", name, "cmdline"))
		exe, _ := os.Readlink(filepath.Join("/proc", name, "exe")) // only root sees that of a serve
		if err == nil && (exe == v.program || strings.Contains(string(args), v.Temp)) {
			found[pid] = strings.ReplaceAll(string(args), "\x00", " ")
		}
	}
	return found
}

// shell returns the login shell that has made the directory of the only job that runs.
func (v *vm) shell(t *testing.T) int {
	t.Helper()
	for pid, line := range v.processes(t) {
		if strings.Contains(line, "mktemp -d") {
			return pid
		}
	}
	t.Fatal("there is no shell")
	return 0
}
