package instance_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Symptom: a VM with a full disk, or without a stepmux, had room at all times, so that it got all builds, and failed
// them. Later it failed its first build, though nothing of it had run.
func TestAVMOnWhichNoStepRunnerStartsFailsNoBuildWhileThereAreOthers(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(v *vm){
		"the disk is full": func(v *vm) { v.tmp = filepath.Join(v.tmp, "missing") },
		"the relay can open no files": func(v *vm) {
			few := filepath.Join(t.TempDir(), "few.sh")
			text := "#!/bin/sh\nulimit -n 14\nexec " + v.runner[0] + ` "$@"`
			require.NoError(t, os.WriteFile(few, []byte(text), 0o700))
			v.runner = []string{few}
		},
	} {
		t.Run(name, func(t *testing.T) {
			full := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			works := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			spoil(full)
			p := providerOf(t, instance.Config{}, 4, full, works)
			reports := runAll(t, p, 6, "true")
			requireSuccess(t, reports)
			for _, r := range reports {
				require.Equal(t, "vm-2", r.Instance)
				require.Empty(t, r.Left)
			}
			stat := statOf(p, "vm-1")
			require.NotEqual(t, instance.Ready, stat.State)
			require.Contains(t, stat.Reason, "steps serve did not start")
			require.Zero(t, stat.Used)

			// The only VM fails builds at once, and so do VMs on none of which a step runner starts.
			p = providerOf(t, instance.Config{}, 4, full)
			for i := range 20 {
				require.Error(t, build(sshtest.Within(t), p, fmt.Sprint("b", i), script("true"), &sshtest.Log{}))
			}
			require.Equal(t, instance.Ready, statOf(p, "vm-1").State)
			p = providerOf(t, instance.Config{}, 4, full, full)
			for i := range 20 {
				err := build(sshtest.Within(t), p, fmt.Sprint("b", i), script("true"), &sshtest.Log{})
				require.ErrorContains(t, err, "steps serve did not start")
			}
		})
	}
}

// Symptom: such a build failed, though nothing of it had run. Later, one that lingers waited for its VM that long.
func TestABuildWhoseVMIsLostWhileItsStepRunnerStartsGoesElsewhere(t *testing.T) {
	t.Parallel()
	for _, linger := range []time.Duration{0, instance.MaxLinger} {
		t.Run(linger.String(), func(t *testing.T) {
			first := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			second := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			mark := filepath.Join(t.TempDir(), "mark")
			slow := filepath.Join(t.TempDir(), "slow")
			require.NoError(t, os.WriteFile(slow, []byte("#!/bin/sh\necho >"+mark+"\nexec cat >/dev/null\n"), 0o700))
			first.runner = []string{slow}
			p := providerOf(t, instance.Config{DialTimeout: time.Second}, 1, first, second)
			e := p.Executor(instance.Build{ID: "b", Log: &sshtest.Log{}, Linger: &linger})
			require.NoError(t, e.Prepare(sshtest.Within(t)))
			connected := make(chan error, 1)
			go func() {
				_, err := e.Connect(sshtest.Within(t))
				connected <- err
			}()
			require.Eventually(t, func() bool { return exists(mark) }, sshtest.Bound, time.Millisecond)
			first.Stop()
			require.NoError(t, <-connected)
			require.Equal(t, "vm-2", e.Instance())
			require.NoError(t, e.Execute(sshtest.Within(t), script("true")))
			require.NoError(t, e.Cleanup(t.Context()))
		})
	}
}

// Symptom: such a build waited for its VM as long as its linger, and failed with "context deadline exceeded".
func TestABuildWhoseVMIsLostBeforeItsStepRunnerIsReachedGoesElsewhere(t *testing.T) {
	t.Parallel()
	for _, linger := range []time.Duration{30 * time.Second, 2 * time.Minute} { // it attaches at once with the first
		t.Run(linger.String(), func(t *testing.T) {
			first := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			second := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			stop := sync.OnceFunc(first.Stop)
			p := providerOf(t, instance.Config{
				DialTimeout: time.Second, StopTimeout: 2 * time.Second, Route: connector.Session,
				Trace: &connector.Trace{ServeReady: func(string, connector.Route, time.Duration) { stop() }},
			}, 1, first, second)
			e := p.Executor(instance.Build{ID: "b", Log: &sshtest.Log{}, Linger: &linger})
			require.NoError(t, e.Prepare(sshtest.Within(t)))
			require.Equal(t, "vm-1", e.Instance())
			_, err := e.Connect(sshtest.Within(t))
			require.NoError(t, err)
			require.Equal(t, "vm-2", e.Instance())
			require.NoError(t, e.Execute(sshtest.Within(t), script("true")))
			require.NoError(t, e.Cleanup(t.Context()))
			require.Len(t, e.Left(), 1)
			require.Contains(t, e.Left()[0], "on vm-1: unknown: the step runner could not be reached")
		})
	}
}

// Symptom: the report of such a build read "may be left on vm-2: instance vm-1: ...".
func TestWhatABuildMayHaveLeftOnTheVMBeforeNamesThatVM(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	proxy := sshtest.Proxy(t, v.Addr) // a VM that is stopped may still tell that the step runner ended
	first := v.via(t, proxy.Addr())
	second := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	silent := filepath.Join(t.TempDir(), "silent")
	text := "#!/bin/sh\n[ $2 = serve ] || exec " + first.runner[0] + ` "$@"` + "\necho it begins >&2\nexec cat\n"
	require.NoError(t, os.WriteFile(silent, []byte(text), 0o700))
	first.runner = []string{silent}
	p := providerOf(t, instance.Config{Route: connector.Session}, 1, first, second)
	var log sshtest.Log
	e := p.Executor(instance.Build{ID: "b", Log: &log})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	connected := make(chan error, 1)
	go func() {
		_, err := e.Connect(sshtest.Within(t))
		connected <- err
	}()
	begins := func() bool { return strings.Contains(log.String(), "it begins") }
	require.Eventually(t, begins, sshtest.Bound, time.Millisecond, "%v", &log)
	proxy.Close()
	require.NoError(t, <-connected)
	require.Equal(t, "vm-2", e.Instance())
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	require.Len(t, e.Left(), 1)
	require.Contains(t, e.Left()[0], "on vm-1: unknown: the connection was lost")
}

// Symptom: such a build failed, though nothing of it had started. Later, one that lingers waited for its VM that long.
func TestABuildWhoseVMIsGoneBeforeItsStepRunnerStartsGoesElsewhere(t *testing.T) {
	t.Parallel()
	for _, linger := range []time.Duration{0, instance.MaxLinger} {
		t.Run(linger.String(), func(t *testing.T) {
			first := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			second := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			p := providerOf(t, instance.Config{DialTimeout: time.Second}, 1, first, second)
			e := p.Executor(instance.Build{ID: "b", Log: &sshtest.Log{}, Linger: &linger})
			require.NoError(t, e.Prepare(sshtest.Within(t)))
			require.Equal(t, "vm-1", e.Instance())
			first.Stop()
			suspect := func() bool { return statOf(p, "vm-1").State == instance.Suspect }
			require.Eventually(t, suspect, sshtest.Bound, time.Millisecond)
			_, err := e.Connect(sshtest.Within(t))
			require.NoError(t, err)
			require.Equal(t, "vm-2", e.Instance())
			require.NoError(t, e.Execute(sshtest.Within(t), script("true")))
			require.NoError(t, e.Cleanup(t.Context()))
			require.Zero(t, statOf(p, "vm-1").Uses)
		})
	}
}

// Symptom: the job ran on another instance than the commands that had prepared the first one for it.
func TestABuildStaysOnTheInstanceWhereItsCommandsHaveRun(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(e *instance.Executor) error{
		"client": func(e *instance.Executor) error {
			c, err := e.Client(sshtest.Within(t))
			if err == nil {
				err = errors.Join(c.Run(sshtest.Within(t), instance.RunOptions{Command: "true"}), c.Close())
			}
			return err
		},
		"script": func(e *instance.Executor) error { return e.Run(sshtest.Within(t), []byte("true")) },
	} {
		t.Run(name, func(t *testing.T) {
			first := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			second := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			first.tmp = filepath.Join(first.tmp, "missing")
			e := providerOf(t, instance.Config{}, 1, first, second).Executor(instance.Build{ID: "b", Log: &sshtest.Log{}})
			require.NoError(t, e.Prepare(sshtest.Within(t)))
			require.NoError(t, use(e))
			_, err := e.Connect(sshtest.Within(t))
			require.ErrorContains(t, err, "steps serve did not start")
			require.Equal(t, "vm-1", e.Instance())
			require.NoError(t, e.Cleanup(t.Context()))
		})
	}
}
