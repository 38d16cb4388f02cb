package instance_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/proc"
)

func TestTheNextServeIsStartedAhead(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 2, func(c *instance.Config, _ *instance.Instance) { c.Route = connector.Relay })
	require.NoError(t, build(sshtest.Within(t), p, "b1", script("true"), &sshtest.Log{}))
	relay := relayPID(t, v)
	prestarted := awaitSpare(t, relay, 0)

	out := &sshtest.Log{}
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "gate"))
	ended := make(chan error, 1)
	go func() {
		ended <- build(sshtest.Within(t), p, "b2", script("echo started; "+wait), out)
	}()
	out.Await(t, "started")
	require.Equal(t, prestarted, servePID(t, v, "b2"), "the prestarted one serves the build")
	next := awaitSpare(t, relay, prestarted)
	open()
	require.NoError(t, <-ended)
	v.requireClean(t)
	gone := func() bool { return !sshtest.Runs(prestarted) }
	require.Eventually(t, gone, sshtest.Bound, time.Millisecond, "it ends with its build")

	require.NoError(t, syscall.Kill(next, syscall.SIGKILL))
	require.Eventually(t, func() bool { // reaped: one whose threads are still ending looks dead before it is
		_, err := os.Stat(fmt.Sprintf("/proc/%d", next))
		return errors.Is(err, os.ErrNotExist)
	}, sshtest.Bound, time.Millisecond)
	err := build(sshtest.Within(t), p, "b3", script("true"), &sshtest.Log{})
	require.NoError(t, err, "without it a build starts its own")
	last := awaitSpare(t, relay, next)
	require.NoError(t, p.Close())
	gone = func() bool { return !sshtest.Runs(last) && !sshtest.Runs(relay) }
	require.Eventually(t, gone, sshtest.Bound, time.Millisecond)
}

// awaitSpare waits until the relay has a serve that waits for its build, other than that one.
func awaitSpare(t testing.TB, relay, other int) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", relay))
		require.NoError(t, err)
		for _, list := range lists {
			text, _ := os.ReadFile(list) // a thread may have ended
			for _, field := range strings.Fields(string(text)) {
				line, _ := os.ReadFile("/proc/" + field + "/cmdline")
				if n, err := strconv.Atoi(field); err == nil && n != other &&
					strings.HasSuffix(string(line), "\x00--socket\x00-\x00--secret-stdin\x00--reuse\x00") {
					pid = n
					return true
				}
			}
		}
		return false
	}, sshtest.Bound, time.Millisecond)
	return pid
}

// Where builds are started by session, the manager does it: a session that nobody else wants holds the next serve.
func TestTheNextServeIsStartedAheadInASessionToo(t *testing.T) {
	for _, route := range []connector.Route{connector.Streamlocal, connector.Session} {
		t.Run(string(route), func(t *testing.T) {
			t.Parallel()
			v := newVM(t, sshtest.OpenSSH(t))
			own := filepath.Join(t.TempDir(), "stepmux")
			require.NoError(t, os.Symlink(v.runner[0], own))
			v.runner = []string{own}
			p := v.provider(t, 2, func(c *instance.Config, _ *instance.Instance) { c.Route = route })
			require.NoError(t, build(sshtest.Within(t), p, "b1", script("true"), &sshtest.Log{}))
			prestarted := awaitSessionSpare(t, own, "serve", 0, 0)
			bridge := 0
			if route == connector.Session {
				bridge = awaitSessionSpare(t, own, "proxy", 0, prestarted)
			}

			out := &sshtest.Log{}
			wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "gate"))
			ended := make(chan error, 1)
			go func() {
				ended <- build(sshtest.Within(t), p, "b2", script("echo started; "+wait), out)
			}()
			out.Await(t, "started")
			require.Equal(t, prestarted, servePID(t, v, "b2"))
			next := awaitSessionSpare(t, own, "serve", prestarted, 0)
			nextBridge := 0
			if route == connector.Session {
				require.True(t, sshtest.Runs(bridge), "the build's bridge goes by the prestarted proxy")
				nextBridge = awaitSessionSpare(t, own, "proxy", bridge, 0)
			}
			open()
			require.NoError(t, <-ended)
			v.requireClean(t)
			require.NoError(t, syscall.Kill(next, syscall.SIGKILL))
			if route == connector.Session {
				require.NoError(t, syscall.Kill(nextBridge, syscall.SIGKILL))
			}
			closed := func() bool { return p.Stat().Instances[0].Conn.Sessions.Open == 0 }
			require.Eventually(t, closed, sshtest.Bound, time.Millisecond)
			err := build(sshtest.Within(t), p, "b3", script("true"), &sshtest.Log{})
			require.NoError(t, err, "without it a build starts its own")
			last := []int{awaitSessionSpare(t, own, "serve", next, 0)}
			if route == connector.Session {
				last = append(last, awaitSessionSpare(t, own, "proxy", nextBridge, 0))
			}
			require.NoError(t, p.Close())
			for _, pid := range last {
				require.Eventually(t, func() bool { return !sshtest.Runs(pid) }, sshtest.Bound, time.Millisecond)
			}
		})
	}
}

// awaitSessionSpare waits until one serve or proxy of that program waits for its build, besides other. A build's own
// proxy looks like a prestarted one, may end after its build, and was started before the process first.
func awaitSessionSpare(t testing.TB, program, verb string, other, first int) (pid int) {
	t.Helper()
	waits := func(pid int) bool {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		return strings.HasPrefix(string(line), program+"\x00steps\x00"+verb+"\x00--socket\x00-\x00")
	}
	require.Eventually(t, func() bool {
		processes, err := proc.List()
		require.NoError(t, err)
		var found []int
		for _, p := range processes {
			// A process that a serve is just starting has its command line for a moment.
			if p.PID != other && waits(p.PID) && !waits(p.Parent) {
				found = append(found, p.PID)
			}
		}
		if len(found) != 1 {
			return false
		}
		pid = found[0]
		return first == 0 || startOf(pid) >= startOf(first)
	}, sshtest.Bound, time.Millisecond, "no prestarted %s", verb)
	return pid
}

// startOf returns when a process was started, in ticks of the kernel's clock, or 0 if it has ended.
func startOf(pid int) (ticks uint64) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	if fields := strings.Fields(rest); len(fields) > 19 { // proc_pid_stat(5): the first of these is field 3
		ticks, _ = strconv.ParseUint(fields[19], 10, 64)
	}
	return ticks
}

func TestWhatWasStartedAheadTakesNoSessionFromABuild(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t, "MaxSessions 2"))
	for _, route := range []connector.Route{connector.Streamlocal, connector.Session} {
		p := v.provider(t, 4, func(c *instance.Config, _ *instance.Instance) { c.Route = route })
		var builds sync.WaitGroup
		for i := range 12 {
			builds.Go(func() {
				assert.NoError(t, build(sshtest.Within(t), p, fmt.Sprint("b", i), script("true"), &sshtest.Log{}))
			})
		}
		builds.Wait()
		e := p.Executor(instance.Build{ID: "b", Shell: []string{"sh"}})
		require.NoError(t, e.Prepare(sshtest.Within(t)))
		require.NoError(t, e.Run(sshtest.Within(t), []byte("true")))
		require.NoError(t, e.Cleanup(sshtest.Within(t)))
		require.Equal(t, 1, p.Stat().Instances[0].Connections)
		require.NoError(t, p.Close())
	}
}
