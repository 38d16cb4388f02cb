package instance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/mux/relay"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// The whole way: a provider, a real sshd, a real step runner, real processes.

func TestBuildRunsAndLeavesNothing(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		out := &sshtest.Log{}
		require.NoError(t, build(sshtest.Within(t), p, "b1", script("echo hello; echo problem >&2; pwd"), out))
		require.Contains(t, out.String(), "hello\n")
		require.Contains(t, out.String(), "problem\n")
		require.NotContains(t, out.String(), "is listening")
		v.requireClean(t)
	})
}

func TestBuildOfSteps(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		out := &sshtest.Log{}
		var mu sync.Mutex
		var events []string
		job := connector.Job{
			Job: &stepmuxv1.Job{Steps: []byte("run:\n  - name: one\n    script: echo $WHO\n    env: {WHO: me}\n" +
				"  - name: two\n    exec: {command: [echo, no, $shell]}\n")},
			OnStep: func(e connector.StepEvent) {
				mu.Lock()
				defer mu.Unlock()
				events = append(events, e.Name+" "+e.Status)
			},
		}
		require.NoError(t, build(sshtest.Within(t), p, "b1", job, out))
		require.Equal(t, "me\nno $shell\n", out.String())
		require.Equal(t, []string{"one running", "one success", "two running", "two success"}, events)
	})
}

// Symptom: a step from a server that refused, or that failed, was the script's failure, with exit code 1.
func TestAStepThatCannotBeFetchedIsTheSystemsFailureAndAWrongReferenceIsNot(t *testing.T) {
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	t.Cleanup(failing.Close)
	empty := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(empty.Close)
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		for i, c := range []struct {
			step   string
			reason instance.FailureReason
		}{
			{"step: '" + failing.URL + "/c/echo@v1'", instance.RunnerSystemFailure},
			{"step: 'http://127.0.0.1:1/c/echo@v1'", instance.RunnerSystemFailure},
			{"step: 'zip+http://127.0.0.1:1/s.zip'", instance.RunnerSystemFailure},
			{"step: {oci: {registry: '127.0.0.1:1', repository: g/echo, tag: '1'}}", instance.RunnerSystemFailure},
			{"action: 'http://127.0.0.1:1/c/echo@v1'", instance.RunnerSystemFailure},
			{"step: '" + empty.URL + "/c/echo@v1'", instance.ScriptFailure},
			{"action: '" + empty.URL + "/c/echo@v1'", instance.ScriptFailure},
		} {
			job := connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{name: fetch, " + c.step + "}]")}}
			requireReason(t, build(sshtest.Within(t), p, fmt.Sprintf("b%d", i), job, &sshtest.Log{}), c.reason, 0)
			// The instance is not at fault: quarantined, it would fail builds that fetch nothing, too.
			require.Equal(t, instance.Ready, p.Stat().Instances[0].State)
		}
	})
}

func TestFailuresOfScriptsAreTheScripts(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		requireReason(t, build(sshtest.Within(t), p, "b1", script("exit 42"), &sshtest.Log{}), instance.ScriptFailure, 42)
		run := func(id string, job connector.Job) error { return build(sshtest.Within(t), p, id, job, &sshtest.Log{}) }
		requireReason(t, run("b2", script("no-such-command")), instance.ScriptFailure, 127)
		requireReason(t, run("b3", script("kill -KILL $$")), instance.ScriptFailure, 137)
		wrong := connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{nonsense: 1}]")}}
		requireReason(t, run("b4", wrong), instance.ConfigurationError, 0)
		v.requireClean(t)
	})
}

//stepmux:acceptance executor | No job variable is in the environment or on the command line of the step runner
func TestJobVariablesReachTheStepsAndNoCommandLineOrEnvironmentOnTheWay(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		const secret = "s3cr3t-of-the-job"
		// The step looks at the command lines and environments of all processes.
		job := script(`echo "mine: $CI_SECRET"; for p in /proc/[0-9]*; do
			[ "$p" = "/proc/$$" ] && continue
			tr '\0' ' ' <$p/cmdline; echo; tr '\0' '\n' <$p/environ; echo; done 2>/dev/null | grep -v '^CI_SECRET=' >all
			echo "leaks: $(grep -c s3cr3t-of all)"`)
		job.Env = map[string]string{"CI_SECRET": secret}
		out := &sshtest.Log{}
		require.NoError(t, build(sshtest.Within(t), p, "b1", job, out))
		require.Contains(t, out.String(), "mine: "+secret)
		require.Contains(t, out.String(), "leaks: 0\n")

		// And serve itself, as seen from here.
		e := p.Executor(instance.Build{ID: "b2"})
		require.NoError(t, e.Prepare(sshtest.Within(t)))
		_, err := e.Connect(sshtest.Within(t))
		require.NoError(t, err)
		pid := servePID(t, v, "b2")
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if os.Geteuid() == 0 { // others may not look into it at all
			require.NoError(t, err)
		}
		require.NotContains(t, string(environ), "CI_")
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		require.NoError(t, err)
		args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")[1:]
		require.Contains(t, [][]string{
			{"steps", "serve", "--socket", v.socket("b2"), "--secret-stdin"},
			{"steps", "serve", "--socket", "-", "--secret-stdin"},            // prestarted in a session
			{"steps", "serve", "--socket", "-", "--secret-stdin", "--reuse"}, // of a relay
		}, args)
		require.NoError(t, e.Cleanup(sshtest.Within(t)))
	})
}

// servePID finds a build's serve: it listens on the socket.
func servePID(t testing.TB, v *vm, build string) int {
	t.Helper()
	nc, err := net.Dial("unix", v.socket(build))
	require.NoError(t, err)
	defer nc.Close()
	raw, err := nc.(*net.UnixConn).SyscallConn()
	require.NoError(t, err)
	var peer *unix.Ucred
	require.NoError(t, raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}))
	require.NoError(t, err)
	return int(peer.Pid)
}

// initPID finds the init of a build's process: a child of serve that has a child.
func initPID(t testing.TB, v *vm, build string) int {
	t.Helper()
	for _, init := range childrenOf(t, servePID(t, v, build)) {
		if len(childrenOf(t, init)) > 0 {
			return init
		}
	}
	require.FailNow(t, "no init")
	return 0
}

func childrenOf(t testing.TB, pid int) []int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	var all []int
	for _, task := range tasks {
		list, _ := os.ReadFile(task) // the thread may have ended
		for _, field := range strings.Fields(string(list)) {
			child, err := strconv.Atoi(field)
			require.NoError(t, err)
			all = append(all, child)
		}
	}
	return all
}

// A VM that shuts down, or whose relay was killed, tells its step runners to end. They say how their jobs ended: nobody
// had cancelled those.
func TestServeThatIsToldToEndIsTheSystemsFailure(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		e := p.Executor(instance.Build{ID: "b1"})
		require.NoError(t, e.Prepare(sshtest.Within(t)))
		_, err := e.Connect(sshtest.Within(t))
		require.NoError(t, err)
		pid := servePID(t, v, "b1")
		err = e.Execute(sshtest.Within(t), script(fmt.Sprintf("trap 'exit 0' TERM; kill %d; sleep 600 & wait", pid)))
		failed := (*instance.BuildError)(nil)
		require.ErrorAs(t, err, &failed)
		require.Equal(t, instance.RunnerSystemFailure, failed.Reason, err.Error())
		require.NoError(t, e.Cleanup(sshtest.Within(t)))
		v.requireClean(t)
	})
}

//stepmux:faults executor | One handshake for each build; bursts of them are refused
//stepmux:acceptance executor | Each build has a socket of its own, named by its ID
//stepmux:with instance.TestSameBuildIDAtOnceIsRefused
//stepmux:reliability promises | There is one connection to each VM at a time; a second one only while a replaced
//stepmux:more connection still has builds
func TestManyBuildsShareOneConnection(t *testing.T) {
	for _, route := range []connector.Route{connector.Auto, connector.Relay, connector.Session} {
		t.Run(string(route), func(t *testing.T) {
			onServers(t, func(t *testing.T, v *vm) {
				if route != connector.Auto && strings.Contains(t.Name(), "without") {
					return // it has no relay, or the route is the same as with forwarding
				}
				const builds, capacity = 16, 12 // more at once than the sessions of a connection
				p := v.provider(t, capacity, func(c *instance.Config, _ *instance.Instance) { c.Route = route })
				all := batch.Batch{}
				logs := make([]*sshtest.Log, builds)
				for i := range logs {
					logs[i] = &sshtest.Log{}
					id := fmt.Sprintf("b%d", i)
					all.Builds = append(all.Builds, batch.Build{ID: id, Job: script("echo I am " + id), Log: logs[i]})
				}
				for i, r := range batch.Run(sshtest.Within(t), sshtest.Within(t), p, all) {
					require.Nil(t, r.Err, "%v", r.Err)
					require.NoError(t, r.Cleanup)
					require.Equal(t, fmt.Sprintf("I am b%d\n", i), logs[i].String())
					require.Positive(t, r.FirstOutput)
				}
				require.Equal(t, 1, v.TotalConns())
				require.Equal(t, 1, p.Stat().Instances[0].Connections)
				if route == connector.Relay {
					require.Equal(t, 1, p.Stat().Instances[0].Conn.Sessions.Peak)
				}
				require.Zero(t, p.Stat().Instances[0].Used)
				v.requireClean(t)
			})
		})
	}
}

func TestAutoFindsOutOnceWhatWorksOnTheVM(t *testing.T) {
	noForwarding, noneAtAll := "AllowStreamLocalForwarding no", "DisableForwarding yes"
	for name, test := range map[string]struct {
		lines         []string
		runner        func(testing.TB) []string
		start, bridge connector.Route
	}{
		"stock":                    {nil, runnertest.Command, connector.Relay, connector.Streamlocal},
		"no forwarding of sockets": {[]string{noForwarding}, runnertest.Command, connector.Relay, connector.Relay},
		"no forwarding":            {[]string{noneAtAll}, runnertest.Command, connector.Relay, connector.Relay},
		"no relay":                 {nil, withoutRelay, connector.Session, connector.Streamlocal},
		"neither":                  {[]string{noForwarding}, withoutRelay, connector.Session, connector.Session},
		"neither, one pair at once": {
			[]string{noForwarding, "MaxSessions 2"}, withoutRelay, connector.Session, connector.Session,
		},
		"one session":           {[]string{"MaxSessions 1"}, runnertest.Command, connector.Relay, connector.Streamlocal},
		"one session, no relay": {[]string{"MaxSessions 1"}, withoutRelay, connector.Session, connector.Streamlocal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVM(t, sshtest.OpenSSH(t, test.lines...))
			v.runner = test.runner(t)
			p := v.provider(t, 4, nil)
			for _, id := range []string{"b1", "b2"} { // who finds out, and who is told
				e := p.Executor(instance.Build{ID: id})
				require.NoError(t, e.Prepare(sshtest.Within(t)))
				_, err := e.Connect(sshtest.Within(t))
				require.NoError(t, err)
				for _, choice := range []connector.Choice{e.Choice(), p.Stat().Instances[0].Route} {
					require.Equal(t, test.start, choice.Start)
					require.NotEmpty(t, choice.StartReason)
					require.Equal(t, test.bridge, choice.Bridge)
					require.NotEmpty(t, choice.BridgeReason)
				}
				require.NoError(t, e.Execute(sshtest.Within(t), script("true")))
				require.NoError(t, e.Cleanup(sshtest.Within(t)))
			}
			v.requireClean(t)
		})
	}
}

func TestAForcedRouteThatDoesNotWorkSaysWhatToDo(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t, "AllowStreamLocalForwarding no"))
	for _, test := range []struct {
		route  connector.Route
		runner []string
		want   string
	}{
		{connector.Relay, withoutRelay(t), "is the runner command a stepmux that has the command steps relay?"},
		{connector.Relay, []string{"/no/such/stepmux"}, `is "/no/such/stepmux" installed on the VM`},
		{connector.Streamlocal, v.runner, "AllowStreamLocalForwarding"},
	} {
		p := v.provider(t, 1, func(c *instance.Config, in *instance.Instance) {
			c.Route, in.Runner = test.route, test.runner
		})
		err := build(sshtest.Within(t), p, "b1", script("true"), &sshtest.Log{})
		requireReason(t, err, instance.RunnerSystemFailure, 0)
		require.ErrorContains(t, err, test.want)
	}
}

func TestARelayThatDiesFailsItsBuildsAndTheNextGoesOn(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	for _, route := range []connector.Route{connector.Auto, connector.Relay} {
		p := v.provider(t, 2, func(c *instance.Config, _ *instance.Instance) { c.Route = route })
		out := &sshtest.Log{}
		ended := make(chan error, 1)
		go func() {
			ended <- build(sshtest.Within(t), p, "b1", script(
				"echo started; (sleep 601 &) ; setsid sleep 602 & sleep 600"), out)
		}()
		out.Await(t, "started")
		require.NoError(t, syscall.Kill(relayPID(t, v), syscall.SIGKILL))
		err := <-ended
		requireReason(t, err, instance.RunnerSystemFailure, 0)
		// Symptom: "the step runner is shutting down", if its bridge is not of the relay: it ends with the relay.
		lost := (*relay.Error)(nil)
		require.ErrorAs(t, err, &lost)
		v.requireClean(t)
		require.NoError(t, build(sshtest.Within(t), p, "b2", script("true"), &sshtest.Log{}), "another relay is started")
		require.Equal(t, 1, p.Stat().Instances[0].Connections, "the connection is well")
		require.NoError(t, p.Close())
		v.requireClean(t)
	}
}

// relayPID finds the VM's relay among the processes.
func relayPID(t testing.TB, v *vm) int {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, p := range procs {
		line, _ := os.ReadFile(p)
		if strings.HasSuffix(string(line), "\x00steps\x00relay\x00--temp-dir\x00"+v.tmp+"\x00") &&
			!strings.HasPrefix(string(line), "sh\x00") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
			require.NoError(t, err)
			return pid
		}
	}
	require.FailNow(t, "no relay")
	return 0
}

func TestCancelStopsTheJobWithItsGraceAndIsHeard(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		ctx, cancel := context.WithCancel(t.Context())
		out := &sshtest.Log{}
		ended := make(chan error, 1)
		go func() {
			ended <- build(ctx, p, "b1", script(`trap 'echo cleaning up; exit 3' TERM; echo started; sleep 600 & wait`), out)
		}()
		out.Await(t, "started")
		cancel()
		requireReason(t, <-ended, instance.JobCanceled, 0)
		require.Contains(t, out.String(), "cleaning up")
		v.requireClean(t)
	})
}

func TestTimeoutIsATimeout(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		job := script("echo started; sleep 600")
		job.Timeout = durationpb.New(300 * time.Millisecond)
		requireReason(t, build(sshtest.Within(t), p, "b1", job, &sshtest.Log{}), instance.JobExecutionTimeout, 0)

		reports := batch.Run(sshtest.Within(t), sshtest.Within(t), p, batch.Batch{
			Timeout: 2 * time.Second, // time enough for the step runner to start
			Builds:  []batch.Build{{ID: "b2", Job: script("sleep 600"), Log: &sshtest.Log{}}},
		})
		requireReason(t, reports[0].Err, instance.JobExecutionTimeout, 0)
		v.requireClean(t)
	})
}

// Symptom: a build ended as job_execution_timeout though no step of it had begun, because its login
// waited for input.
func TestATimeoutBeforeTheFirstStepIsTheMachines(t *testing.T) {
	s := sshtest.OpenSSH(t, "ForceCommand echo please wait >&2; exec sleep 600")
	v := newVM(t, s)
	reports := batch.Run(sshtest.Within(t), sshtest.Within(t), v.provider(t, 1, nil), batch.Batch{
		Timeout: time.Second,
		Builds:  []batch.Build{{ID: "b1", Job: script("true"), Log: &sshtest.Log{}}},
	})
	requireReason(t, reports[0].Err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, reports[0].Err, "no step has begun: the build took longer than 1s")
	require.True(t, reports[0].Err.Late, "a job of a pipeline has timed out")
	require.ErrorContains(t, reports[0].Err, "had not answered; it said: please wait")

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	requireReason(t, build(ctx, v.provider(t, 1, nil), "b2", script("true"), &sshtest.Log{}), instance.JobCanceled, 0)
}

func TestCancelWhileWaitingForASlot(t *testing.T) {
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := v.provider(t, 1, nil)
	first := p.Executor(instance.Build{ID: "b1"})
	require.NoError(t, first.Prepare(sshtest.Within(t)))
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { waiting <- build(ctx, p, "b2", script("true"), &sshtest.Log{}) }()
	cancel()
	requireReason(t, <-waiting, instance.JobCanceled, 0)
	require.NoError(t, first.Cleanup(sshtest.Within(t)))
	require.NoError(t, build(sshtest.Within(t), p, "b3", script("true"), &sshtest.Log{}), "the slot is not lost")
}

func TestHardAbortByCleanupEndsTheBuild(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		out := &sshtest.Log{}
		e := p.Executor(instance.Build{ID: "b1", Log: out})
		require.NoError(t, e.Prepare(sshtest.Within(t)))
		_, err := e.Connect(sshtest.Within(t))
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- e.Execute(sshtest.Within(t), script("echo started; sleep 600")) }()
		out.Await(t, "started")
		require.NoError(t, e.Cleanup(sshtest.Within(t)))
		requireReason(t, <-ended, instance.RunnerSystemFailure, 0)
		v.requireClean(t)
	})
}

//stepmux:faults executor | A cut connection is reported as a failure of the script, with exit code 0
//stepmux:with mux.TestLossAfterTheExitStatusIsStillALoss
//stepmux:reliability promises | No loss is silent: the error of a lost build names the cause
//stepmux:with instance.TestARelayThatDiesFailsItsBuildsAndTheNextGoesOn, remote/job.TestFullDiskFailsTheJobThatMeetsIt
func TestLostConnectionIsTheSystemsFailureAndLeavesNothing(t *testing.T) {
	// Symptom: a cut connection was reported as a script failure with exit code 0, and the job ran on.
	for _, route := range []connector.Route{connector.Relay, connector.Streamlocal, connector.Session} {
		t.Run(string(route), func(t *testing.T) {
			onServers(t, func(t *testing.T, v *vm) {
				if route == connector.Streamlocal && strings.HasSuffix(t.Name(), "without_forwarding") ||
					route == connector.Relay && strings.HasSuffix(t.Name(), "without_relay") {
					return // has no such route
				}
				proxy := sshtest.Proxy(t, v.Addr)
				behind := v.via(t, proxy.Addr())
				p := behind.provider(t, 1, func(c *instance.Config, _ *instance.Instance) { c.Route = route })
				out := &sshtest.Log{}
				ended := make(chan error, 1)
				go func() {
					ended <- build(sshtest.Within(t), p, "b1", script(
						"echo started; (sleep 601 &) ; setsid sleep 602 & sleep 600"), out)
				}()
				out.Await(t, "started")
				proxy.Cut()
				err := <-ended
				requireReason(t, err, instance.RunnerSystemFailure, 0)
				lost := (*mux.ConnError)(nil)
				require.ErrorAs(t, err, &lost)
				v.requireClean(t)
				require.NoError(t, build(sshtest.Within(t), p, "b2", script("true"), &sshtest.Log{}), "the next build dials anew")
			})
		})
	}
}

//stepmux:faults executor | A step runner that crashes after it was ready goes unseen, and the build hangs to its
//stepmux:more timeout
func TestServeThatIsKilledEndsTheBuildAndLeavesNothing(t *testing.T) {
	// Symptom: a step runner that crashed after it was ready went unseen; the build hung to its timeout.
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 2, nil)
		out := &sshtest.Log{}
		ended := make(chan error, 1)
		go func() {
			ended <- build(sshtest.Within(t), p, "b1", script("echo started; setsid sleep 601 & sleep 600"), out)
		}()
		out.Await(t, "started")
		require.NoError(t, syscall.Kill(servePID(t, v, "b1"), syscall.SIGKILL))
		err := <-ended
		requireReason(t, err, instance.RunnerSystemFailure, 137)
		v.requireClean(t)
		require.NoError(t, build(sshtest.Within(t), p, "b2", script("true"), &sshtest.Log{}))
		require.Equal(t, 1, v.TotalConns(), "over the same connection")
	})
}

//stepmux:faults executor | A gRPC client that connects again ends the step runner
//stepmux:acceptance connection | A bridge that breaks is opened again, and the build goes on
//stepmux:reliability mechanisms | No silent loss: output goes on where it was cut off | `connector/execution.go`
func TestBridgeThatBreaksIsOpenedAnewAndTheLogGoesOn(t *testing.T) {
	// The bridge's process is killed; neither serve nor the job notices.
	v := newVM(t, sshtest.OpenSSH(t))
	own := filepath.Join(t.TempDir(), "runner") // a proxy that was started before its serve listened names no socket
	require.NoError(t, os.Symlink(v.runner[0], own))
	p := v.provider(t, 1, func(c *instance.Config, in *instance.Instance) {
		c.Route, in.Runner = connector.Session, []string{own}
	})
	out := &sshtest.Log{}
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "gate"))
	ended := make(chan error, 1)
	go func() {
		ended <- build(sshtest.Within(t), p, "b1", script(
			"echo one; "+wait+"; echo two"), out)
	}()
	out.Await(t, "one")
	killed := false
	for _, text := range processesNaming(own) {
		if fields := strings.Fields(text); len(fields) == 6 && fields[3] == "proxy" {
			pid, err := strconv.Atoi(fields[0])
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			killed = true
		}
	}
	require.True(t, killed)
	open()
	require.NoError(t, <-ended)
	require.Equal(t, "one\ntwo\n", out.String())
	v.requireClean(t)
}

type brokenLog struct{}

func (brokenLog) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestLogThatCannotBeWrittenEndsItsBuildOnly(t *testing.T) {
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := v.provider(t, 2, nil)
	e := p.Executor(instance.Build{ID: "b1", Log: brokenLog{}})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	_, err := e.Connect(sshtest.Within(t))
	require.NoError(t, err)
	err = e.Execute(sshtest.Within(t), script("echo x; sleep 600"))
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "write build log: no space left on device")
	require.NoError(t, build(sshtest.Within(t), p, "b2", script("true"), &sshtest.Log{}))
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	v.requireClean(t)
}

func TestSameBuildIDAtOnceIsRefused(t *testing.T) {
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := v.provider(t, 2, nil)
	e := p.Executor(instance.Build{ID: "b1"})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	_, err := e.Connect(sshtest.Within(t))
	require.NoError(t, err)
	err = build(sshtest.Within(t), p, "b1", script("true"), &sshtest.Log{})
	requireReason(t, err, instance.RunnerSystemFailure, 3)
	require.ErrorContains(t, err, "already being served")
	require.NoError(t, e.Execute(sshtest.Within(t), script("true")), "the first is not disturbed")
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	v.requireClean(t)
}

//stepmux:acceptance executor | The proxy, and the routes without a proxy, reach the step runner
//stepmux:with instance.TestBuildRunsAndLeavesNothing, instance.TestAutoFindsOutOnceWhatWorksOnTheVM
func TestConnectGivesADialFunctionForAClientOfTheCallers(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, nil)
		e := p.Executor(instance.Build{ID: "b1"})
		require.NoError(t, e.Prepare(sshtest.Within(t)))
		dial, err := e.Connect(sshtest.Within(t))
		require.NoError(t, err)
		for range 3 { // closing one is no end of serve
			bridge, err := dial()
			require.NoError(t, err)
			_, err = bridge.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
			require.NoError(t, err)
			_, err = io.ReadFull(bridge, make([]byte, 9))
			require.NoError(t, err)
			require.NoError(t, bridge.Close())
		}
		require.NoError(t, e.Execute(sshtest.Within(t), script("true")))
		require.NoError(t, e.Cleanup(sshtest.Within(t)))
		_, err = dial()
		require.Error(t, err)
		v.requireClean(t)
	})
}

func TestWrongCredentialsFailAtOnceForAllBuilds(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	stranger := sshtest.InProcess(t, embeddedvm.Config{})
	p := v.provider(t, 2, func(_ *instance.Config, in *instance.Instance) {
		in.SSH.Auth = []login.Auth{login.Key("of a stranger", stranger.Signer)}
	})
	for i := range 6 {
		err := build(sshtest.Within(t), p, fmt.Sprintf("b%d", i), script("true"), &sshtest.Log{})
		requireReason(t, err, instance.RunnerSystemFailure, 0)
		require.ErrorContains(t, err, "key of a stranger")
	}
	require.Equal(t, 1, v.TotalConns(), "a refused login is not tried again")
}

func TestLoginShellThatTalksIsNamed(t *testing.T) {
	dir := t.TempDir()
	shell := filepath.Join(dir, "shell")
	text := "#!/bin/sh\necho Welcome to this machine, dear user\nexec /bin/sh \"$@\"\n"
	require.NoError(t, os.WriteFile(shell, []byte(text), 0o700))
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{Shell: shell}))
	p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) { c.Route = connector.Session })
	err := build(sshtest.Within(t), p, "b1", script("true"), &sshtest.Log{})
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "the VM's login shell prints text into the bridge")
	require.ErrorContains(t, err, "Welcome")
	v.requireClean(t)

	p = v.provider(t, 1, nil)
	require.NoError(t, build(sshtest.Within(t), p, "b2", script("true"), &sshtest.Log{}), "streamlocal does not mind")
}
