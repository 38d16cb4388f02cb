package instance_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestRunRunsAShellScriptWithoutAStepRunner(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, func(_ *instance.Config, in *instance.Instance) { in.Runner = []string{"/none"} })
		out := &sshtest.Log{}
		e := p.Executor(instance.Build{ID: "b1", Log: out, Shell: []string{"sh", "-e"}})
		require.NoError(t, e.Prepare(sshtest.Within(t)))
		require.NoError(t, e.Run(sshtest.Within(t), []byte("echo out; echo err >&2")))
		require.Contains(t, out.String(), "out\n")
		require.Contains(t, out.String(), "err\n")
		requireReason(t, e.Run(sshtest.Within(t), []byte("false\necho not reached")), instance.ScriptFailure, 1)
		requireReason(t, e.Prepare(sshtest.Within(t)), instance.RunnerSystemFailure, 0) // twice
		require.NoError(t, e.Cleanup(sshtest.Within(t)))
		requireReason(t, e.Run(sshtest.Within(t), []byte("true")), instance.RunnerSystemFailure, 0)
	})
}

// OpenSSH has no names for some signals, and dropbear says nothing of a command that one of them ended.
func TestASignalThatTheServerDoesNotNameIsTheScriptsExitStatus(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *sshtest.Server{
		"OpenSSH":  func(t testing.TB) *sshtest.Server { return sshtest.OpenSSH(t) },
		"dropbear": sshtest.Dropbear,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newVM(t, start(t)).provider(t, 1, nil)
			for signal, code := range map[string]int{"BUS": 135, "XCPU": 152, "34": 162} {
				e := p.Executor(instance.Build{ID: "b", Log: &sshtest.Log{}, Shell: []string{"sh"}})
				require.NoError(t, e.Prepare(sshtest.Within(t)))
				requireReason(t, e.Run(sshtest.Within(t), []byte("kill -"+signal+" $$")), instance.ScriptFailure, code)
				require.NoError(t, e.Cleanup(sshtest.Within(t)))
			}
		})
	}
}

func TestCleanupEndsAScriptAndWaitsForIt(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 1, nil)
	out := &sshtest.Log{}
	e := p.Executor(instance.Build{ID: "b1", Log: out})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	ended := make(chan error, 1)
	go func() { ended <- e.Run(sshtest.Within(t), []byte("echo started; cd "+v.tmp+"; sleep 600")) }()
	out.Await(t, "started")
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	require.Zero(t, p.Stat().Instances[0].Used)
	v.requireClean(t)
	err := <-ended
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorIs(t, err, instance.ErrCleanedUp)
}

func TestCleanupEndsTheWaitForASlot(t *testing.T) {
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := v.provider(t, 1, nil)
	first := p.Executor(instance.Build{ID: "b1"})
	require.NoError(t, first.Prepare(sshtest.Within(t)))
	second := p.Executor(instance.Build{ID: "b2"})
	ended := make(chan error, 1)
	go func() { ended <- second.Prepare(sshtest.Within(t)) }()
	require.NoError(t, second.Cleanup(sshtest.Within(t)))
	require.ErrorIs(t, <-ended, instance.ErrCleanedUp)
	require.NoError(t, first.Cleanup(sshtest.Within(t)))
}

func TestAbortCutsBuildsShortThatIgnoreTheirCancellation(t *testing.T) {
	// Symptom: the second Ctrl-C had no effect while a job sat out its grace.
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		ctx, cancel := context.WithCancel(t.Context())
		abort, cut := context.WithCancel(t.Context())
		defer cut()
		out := &sshtest.Log{}
		job := script(`trap "" TERM; echo started; while :; do sleep 600; done`)
		job.Grace = durationpb.New(time.Hour)
		ended := make(chan []batch.Report, 1)
		go func() {
			ended <- batch.Run(ctx, abort, p, batch.Batch{Builds: []batch.Build{{ID: "b1", Job: job, Log: out}}})
		}()
		out.Await(t, "started")
		cancel()
		cut()
		requireReason(t, (<-ended)[0].Err, instance.JobCanceled, 0)
		v.requireClean(t)
	})
}

func TestCancelledDialIsACancellation(t *testing.T) {
	// Symptom: Ctrl-C while a VM was being dialed was a failure of the system.
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	require.NoError(t, err)
	defer ln.Close()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := v.provider(t, 1, func(_ *instance.Config, in *instance.Instance) { in.Addr = ln.Addr().String() })
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- build(ctx, p, "b1", script("true"), &sshtest.Log{}) }()
	nc, err := ln.Accept()
	require.NoError(t, err)
	defer nc.Close()
	because := errors.New("signal: interrupt")
	cancel(because)
	err = <-ended
	requireReason(t, err, instance.JobCanceled, 0)
	require.ErrorIs(t, err, because)
}

func TestAutoWorksWithASingleSession(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t, "MaxSessions 1"))
	p := v.provider(t, 2, nil)
	require.NoError(t, build(sshtest.Within(t), p, "b1", script("true"), &sshtest.Log{}))
	require.NoError(t, build(sshtest.Within(t), p, "b2", script("true"), &sshtest.Log{}))
	v.requireClean(t)
}

func TestForcedStreamlocalThatIsForbiddenSaysSo(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t, "AllowStreamLocalForwarding no"))
	p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) { c.Route = "streamlocal" })
	err := build(sshtest.Within(t), p, "b1", script("true"), &sshtest.Log{})
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "AllowStreamLocalForwarding in sshd_config")
	v.requireClean(t)
}

func TestShutdownWaitsForBuildsAndTakesNoNewOnes(t *testing.T) {
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := v.provider(t, 2, nil)
	e := p.Executor(instance.Build{ID: "b1"})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	down := make(chan error, 1)
	go func() { down <- p.Shutdown(sshtest.Within(t)) }()
	require.Eventually(t, func() bool {
		err := build(sshtest.Within(t), p, "b2", script("true"), &sshtest.Log{})
		return err != nil && strings.Contains(err.Error(), "closed")
	}, sshtest.Bound, time.Millisecond)
	require.NoError(t, e.Run(sshtest.Within(t), []byte("true")), "what runs goes on")
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	require.NoError(t, <-down)
}
