package instance_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/metrics"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// isolated runs a job on p's instance and returns its isolation, its output and its error.
func isolated(t *testing.T, p *instance.Provider, id, text string) (program.Isolation, string, error) {
	t.Helper()
	log := &sshtest.Log{}
	e := p.Executor(instance.Build{ID: id, Log: log})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	require.Zero(t, e.Isolation())
	_, err := e.Connect(sshtest.Within(t))
	require.NoError(t, err)
	err = e.Execute(sshtest.Within(t), script(text))
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	return e.Isolation(), log.String(), err
}

// The VMs of these tests say "off" by their variable, which a level by name overrides.
func TestABuildHasTheLevelThatItsInstanceNames(t *testing.T) {
	outside, err := os.Readlink("/proc/self/ns/pid")
	require.NoError(t, err)
	onServers(t, func(t *testing.T, v *vm) {
		for _, level := range []vmconfig.Level{vmconfig.Processes, vmconfig.Private, vmconfig.Off} {
			p := v.provider(t, 1, func(_ *instance.Config, in *instance.Instance) { in.Isolation = level })
			require.Zero(t, p.Stat().Instances[0].Isolation)
			for n := range 2 { // the second one may have a serve that was started ahead
				got, out, err := isolated(t, p, fmt.Sprintf("%s-%d", level, n), "readlink /proc/self/ns/pid")
				if failed := got.Reason; err != nil && failed != "" {
					t.Skip("part missing: namespaces: ", failed)
				}
				require.NoError(t, err)
				require.Equal(t, program.Isolation{Level: level}, got)
				require.Equal(t, got, p.Stat().Instances[0].Isolation)
				require.Equal(t, level == vmconfig.Off, out == outside+"\n", "the namespace of the job is %s", out)
			}
			require.NoError(t, p.Close())
		}
		v.requireClean(t)
	})
}

// vmWithoutIsolation is a VM whose kernel gives a login no more namespaces, as a sysctl of the machine would have it.
func vmWithoutIsolation(t *testing.T) *vm {
	t.Helper()
	const unshare = "/usr/bin/unshare"
	sshtest.RequirePart(t, "util-linux", unshare)
	t.Setenv(vmconfig.LevelVar, "auto")
	const limit = "echo 0 >/proc/sys/user/max_user_namespaces && echo 0 >/proc/sys/user/max_pid_namespaces"
	limited := []string{unshare, "--user", "--map-current-user", "--keep-caps", "sh", "-c", limit + ` && exec "$@"`, "sh"}
	if out, err := exec.Command(limited[0], append(limited[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("part missing: user namespaces: %v: %s", err, out)
	}
	v := newVM(t, sshtest.OpenSSH(t))
	v.runner = append(limited, v.runner...)
	return v
}

func TestAutoIsOffWhereThereIsNoIsolationAndSaysWhy(t *testing.T) {
	v := vmWithoutIsolation(t)
	p := v.provider(t, 1, nil)
	got, _, err := isolated(t, p, "b1", "true")
	require.NoError(t, err)
	require.Equal(t, vmconfig.Off, got.Level)
	require.Contains(t, got.Reason, "isolation processes is not available: ")
	require.Equal(t, got, p.Stat().Instances[0].Isolation)

	status, table := control.StatusOf(control.Config{Provider: p}, time.Now()), &strings.Builder{}
	require.NoError(t, status.WriteText(table, time.Now(), false))
	require.Regexp(t, `\nvm-1 .* off .*\n(?s:.*)vm-1: isolation off: \Q`+got.Reason+`\E\n`, "\n"+table.String())
	require.Contains(t, scraped(t, p), `stepmux_instance_isolation{instance="vm-1",level="off"} 1`+"\n")
}

// scraped returns the metrics of p's instances.
func scraped(t *testing.T, p *instance.Provider) string {
	t.Helper()
	m := metrics.New("v1")
	m.Watch(p)
	s, err := metrics.Serve(":0", m)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + s.Addr() + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(text)
}

func TestALevelByNameThatCannotBeHadFailsTheBuild(t *testing.T) {
	v := vmWithoutIsolation(t)
	p := v.provider(t, 1, func(_ *instance.Config, in *instance.Instance) { in.Isolation = "processes" })
	got, out, err := isolated(t, p, "b1", "echo ran")
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "isolation processes is not available: ")
	require.NotContains(t, out, "ran")
	require.Empty(t, got.Level)
	require.Contains(t, got.Reason, "is not available")
}

func TestAScriptHasTheLevelThatItsInstanceNamesOrIsRefused(t *testing.T) {
	outside, err := os.Readlink("/proc/self/ns/pid")
	require.NoError(t, err)
	onServers(t, func(t *testing.T, v *vm) {
		for _, level := range []vmconfig.Level{vmconfig.Off, vmconfig.Processes, vmconfig.Private} {
			p := v.provider(t, 1, func(_ *instance.Config, in *instance.Instance) { in.Isolation = level })
			log := &sshtest.Log{}
			e := p.Executor(instance.Build{ID: "b1", Log: log})
			require.NoError(t, e.Prepare(sshtest.Within(t)))
			err := e.Run(sshtest.Within(t), []byte("readlink /proc/self/ns/pid\n"))
			require.NoError(t, e.Cleanup(sshtest.Within(t)))
			if strings.HasSuffix(t.Name(), "without_relay") && level != vmconfig.Off {
				requireReason(t, err, instance.RunnerSystemFailure, 0)
				require.ErrorContains(t, err,
					"isolation "+level.String()+" needs a relay, and the script runs in an SSH session of its own")
				continue
			}
			require.NoError(t, err)
			require.Equal(t, level == vmconfig.Off, log.String() == outside+"\n", "the namespace of the script is %s", log)
		}
	})
}

func TestAGroupRefusesALevelThatIsNone(t *testing.T) {
	_, err := instance.NewGroup(instance.Instance{ID: "a", Addr: "a:22", Options: vmconfig.Options{Isolation: "high"}})
	require.EqualError(t, err, `instance a: isolation "high": use auto, off, processes or private`)
}
