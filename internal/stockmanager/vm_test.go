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
	"github.com/stepmux/stepmux/internal/remotetest"
	"github.com/stepmux/stepmux/internal/runnertest"
	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/internal/stockmanager"
)

// vm is a machine with a stock sshd, and with stepmux-vm under the name gitlab-runner.
type vm struct {
	*stockmanager.Manager
	server  *sshtest.Server
	program string // stepmux-vm, a file of this test's own
	builds  string // for build directories
}

// newVM starts a VM. runner is the script gitlab-runner; if it is empty, gitlab-runner is a symbolic link to the program.
func newVM(t *testing.T, runner string) *vm {
	t.Helper()
	bin := t.TempDir()
	program := filepath.Join(bin, "stepmux-vm")
	built, err := runnertest.Program()
	require.NoError(t, err)
	require.NoError(t, os.Link(built, program))
	if runner == "" {
		require.NoError(t, os.Symlink("stepmux-vm", filepath.Join(bin, "gitlab-runner")))
	} else {
		require.NoError(t, os.WriteFile(filepath.Join(bin, "gitlab-runner"), []byte(runner), 0o700))
	}
	server := sshtest.OpenSSH(t, "SetEnv SHLVL=1 PATH="+bin+":/usr/bin:/bin")
	v := &vm{server: server, program: program, builds: t.TempDir()}
	v.Manager = &stockmanager.Manager{Addr: server.Addr, SSH: server.ClientConfig(), Temp: remotetest.ShortTemp(t)}
	t.Cleanup(func() { v.requireNothingLeft(t) })
	return v
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

// start runs the job in a goroutine until the returned function is called, which returns its result. start itself
// returns once the log has text.
func (v *vm) start(t *testing.T, job stockmanager.Job, text string) (wait func() (stockmanager.Result, error)) {
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
	}
}

// requireNothingLeft waits until no directory and no process of the VM's program is left.
func (v *vm) requireNothingLeft(t *testing.T) {
	t.Helper()
	var left []string
	require.Eventually(t, func() bool {
		left = append(remotetest.Names(t, v.Temp), v.processes(t)...)
		return len(left) == 0
	}, sshtest.Bound, 20*time.Millisecond, "%q", &left)
}

// processes returns the command lines of the processes on the VM that a job has brought: of the program, and with the
// name of the VM's directory.
func (v *vm) processes(t *testing.T) (found []string) {
	t.Helper()
	for _, name := range remotetest.Names(t, "/proc") {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		args, err := os.ReadFile(filepath.Join("/proc", name, "cmdline"))
		exe, _ := os.Readlink(filepath.Join("/proc", name, "exe")) // only root sees that of a serve
		if err == nil && pid != os.Getpid() && (exe == v.program || strings.Contains(string(args), v.Temp)) {
			found = append(found, strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}
