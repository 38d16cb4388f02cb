package instance_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// servers are those the whole way is tested on.
var servers = []struct {
	name  string
	start func(testing.TB) *sshtest.Server
}{
	{"in-process", func(t testing.TB) *sshtest.Server { return sshtest.InProcess(t, embeddedvm.Config{}) }},
	{"OpenSSH", func(t testing.TB) *sshtest.Server { return sshtest.OpenSSH(t) }},
	{"OpenSSH without forwarding", func(t testing.TB) *sshtest.Server {
		return sshtest.OpenSSH(t, "AllowStreamLocalForwarding no")
	}},
	{noRelay, func(t testing.TB) *sshtest.Server { return sshtest.OpenSSH(t) }},
}

// noRelay names a server whose step runner is one without `steps relay`, as those of other makers are.
const noRelay = "OpenSSH without relay"

func onServers(t *testing.T, test func(*testing.T, *vm)) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			v := newVM(t, s.start(t))
			if s.name == noRelay {
				v.runner = withoutRelay(t)
			}
			test(t, v)
		})
	}
}

// vm is a VM with its own temporary directory, in which a test finds files that builds leave.
type vm struct {
	*sshtest.Server
	tmp    string
	runner []string
}

func newVM(t testing.TB, s *sshtest.Server) *vm {
	return &vm{Server: s, tmp: sshtest.SocketDir(t), runner: runnertest.Command(t)}
}

// socket returns the path of a build's socket.
func (v *vm) socket(build string) string {
	return filepath.Join(v.tmp, "gitlab-runner-steps", build, "step-runner.sock")
}

// via returns the VM as seen through a proxy.
func (v *vm) via(t testing.TB, addr string) *vm {
	t.Helper()
	return &vm{Server: v.Via(t, addr), tmp: v.tmp, runner: v.runner}
}

// withoutRelay returns the command of a step runner that knows nothing of relays.
func withoutRelay(t testing.TB) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runner.sh")
	text := `[ "$2" != relay ] || { echo "unknown command: steps relay" >&2; exit 1; }; ` +
		"exec " + runnertest.Command(t)[0] + ` "$@"`
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return []string{path}
}

// instance returns the VM as the group knows it.
func (v *vm) instance(t testing.TB, capacity int) instance.Instance {
	return instance.Instance{
		ID:       "vm-1",
		Addr:     v.Addr,
		Capacity: capacity,
		Runner:   v.runner,
		Options:  vmconfig.Options{TempDir: v.tmp},
		SSH: mux.Config{
			User:     v.User,
			Auth:     []login.Auth{login.Key("of the test", v.Signer)},
			HostKeys: login.PinnedHostKeys(v.HostKey),
		},
	}
}

func (v *vm) provider(
	t testing.TB, capacity int, change func(*instance.Config, *instance.Instance), more ...instance.Instance,
) *instance.Provider {
	t.Helper()
	in := v.instance(t, capacity)
	cfg := instance.Config{}
	if change != nil {
		change(&cfg, &in)
	}
	var err error
	cfg.Group, err = instance.NewGroup(append(more, in)...)
	require.NoError(t, err)
	p, err := instance.NewProvider(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// requireClean waits until nothing of any build is left on the VM: no directory, no process.
func (v *vm) requireClean(t testing.TB) {
	t.Helper()
	var left []string
	require.Eventually(t, func() bool {
		left = left[:0]
		err := filepath.WalkDir(v.tmp, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "tools-") {
				return fs.SkipDir // the relay's, which removes it at its end
			}
			if err == nil && path != v.tmp && d.Name() != "gitlab-runner-steps" {
				left = append(left, path)
			}
			return nil
		})
		left = append(left, processesNaming(v.tmp)...)
		return err == nil && len(left) == 0
	}, sshtest.Bound, 50*time.Millisecond, "left on the VM: %v", &left) // a look at all processes costs milliseconds
}

// processesNaming returns the processes that have to do with dir, but for relays, which are not a build's.
func processesNaming(dir string) []string {
	isRelay := func(p string) bool { return strings.Contains(p, " steps relay ") }
	return slices.DeleteFunc(remotetest.Processes(dir), isRelay)
}

// requireReason checks that err is a BuildError of this reason and exit code.
func requireReason(t testing.TB, err error, reason instance.FailureReason, code int) {
	t.Helper()
	failed := (*instance.BuildError)(nil)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, reason, failed.Reason, err.Error())
	require.Equal(t, code, failed.ExitCode, err.Error())
}

// build runs one job the whole way and cleans up.
func build(ctx context.Context, p *instance.Provider, id string, job connector.Job, log *sshtest.Log) error {
	e := p.Executor(instance.Build{ID: id, Log: log})
	err := e.Prepare(ctx)
	if err == nil {
		_, err = e.Connect(ctx)
	}
	if err == nil {
		err = e.Execute(ctx, job)
	}
	return errors.Join(err, e.Cleanup(context.WithoutCancel(ctx)))
}

func script(text string) connector.Job { return connector.Job{Job: &stepmuxv1.Job{Script: text}} }
