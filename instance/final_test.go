package instance_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// restless is a job that has children in its process group, out of it, and in sessions of their own, and
// says when they are there.
const restless = `sleep 600 &
(sleep 600 &)
setsid sh -c 'trap "" TERM; while :; do sleep 600; done' &
echo started; `

// finalBuild is a build that is about to reach its final state.
type finalBuild struct {
	*vm
	proxy    *sshtest.TCPProxy
	executor *instance.Executor
	cancel   context.CancelFunc
}

// order records the events of the builds' step runners.
type order struct {
	mu     sync.Mutex // guards the following
	events []string
}

func (o *order) note(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, what)
}

func (o *order) trace() *connector.Trace {
	return &connector.Trace{
		ServeReady:  func(string, connector.Route, time.Duration) { o.note("serve ready") },
		BridgeOpen:  func(string, connector.Route) { o.note("bridge open") },
		BridgeClose: func(string) { o.note("bridge closed") },
		ServeStop:   func(string) { o.note("serve told") },
		ServeGone:   func(string, time.Duration, error) { o.note("serve gone") },
	}
}

// require checks that a build that had a step runner closed its bridges before that was told to end.
func (o *order) require(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	require.GreaterOrEqual(t, len(o.events), 5, "%v", o.events)
	require.Equal(t, "serve ready", o.events[0])
	require.Equal(t, []string{"bridge closed", "serve told", "serve gone"}, o.events[len(o.events)-3:])
	open := 0
	for _, e := range o.events {
		switch e {
		case "bridge open":
			open++
		case "bridge closed":
			open--
		case "serve told":
			require.Zero(t, open, "bridges that are open when serve is told to end: %v", o.events)
		}
	}
}

// finalStates are the ways in which a build can end. The VM is clean after each, and takes the next build. (The
// manager's own end is the program's test.)
var finalStates = []struct {
	name   string
	script string                          // of the job; it is ended once it has said "started"
	end    func(*testing.T, *finalBuild)   // ends it; nil if it ends by itself
	runner func(*testing.T, string) string // the step runner, made of the program; nil: the program
	job    func(*connector.Job)            // changes the job; may be nil
	routes []connector.Route               // nil: all
	reason instance.FailureReason          // empty: success
	code   int
	check  func(*testing.T, error) // looks closer; may be nil
	early  bool                    // there never is a step runner that listens
	lost   bool                    // nobody can know what is left
}{
	{name: "success", script: restless + "exit 0"},
	{name: "script failure", script: restless + "exit 42", reason: instance.ScriptFailure, code: 42},
	{name: "script failure by a signal", script: restless + "kill -KILL $$", reason: instance.ScriptFailure, code: 137},
	{
		name:   "graceful cancel",
		script: "trap 'exit 3' TERM; " + restless + "wait",
		end:    func(_ *testing.T, b *finalBuild) { b.cancel() },
		reason: instance.JobCanceled,
	},
	{
		name:   "cancel of a job that will not hear of it",
		script: "trap '' TERM; " + restless + "while :; do sleep 600; done",
		end:    func(_ *testing.T, b *finalBuild) { b.cancel() },
		job:    func(j *connector.Job) { j.Grace = durationpb.New(time.Millisecond) },
		reason: instance.JobCanceled,
	},
	{
		name:   "hard abort by Cleanup",
		script: restless + "wait",
		end:    func(t *testing.T, b *finalBuild) { require.NoError(t, b.executor.Cleanup(sshtest.Within(t))) },
		reason: instance.RunnerSystemFailure,
		check:  func(t *testing.T, err error) { require.ErrorIs(t, err, instance.ErrCleanedUp) },
	},
	{
		name:   "job timeout",
		script: restless + "wait",
		job:    func(j *connector.Job) { j.Timeout = durationpb.New(300 * time.Millisecond) },
		reason: instance.JobExecutionTimeout,
	},
	{
		name: "serve exits before it is ready",
		runner: func(t *testing.T, program string) string {
			return runnerScript(t, `[ "$2" != serve ] || { echo "out of luck" >&2; exit 7; }; exec `+program+` "$@"`)
		},
		routes: []connector.Route{connector.Session}, // a relay starts the program that it runs itself, not the script
		reason: instance.RunnerSystemFailure,
		code:   7,
		check:  func(t *testing.T, err error) { require.ErrorContains(t, err, "out of luck") },
		early:  true,
	},
	{
		name:   "serve crashes after it was ready",
		script: restless + "wait",
		end: func(t *testing.T, b *finalBuild) {
			require.NoError(t, syscall.Kill(servePID(t, b.vm, "b1"), syscall.SIGKILL))
		},
		reason: instance.RunnerSystemFailure,
		code:   137,
	},
	{
		name:   "the init of the job's process crashes",
		script: restless + "wait",
		end: func(t *testing.T, b *finalBuild) {
			require.NoError(t, syscall.Kill(initPID(t, b.vm, "b1"), syscall.SIGKILL))
		},
		reason: instance.RunnerSystemFailure,
		check:  func(t *testing.T, err error) { require.ErrorContains(t, err, "the command's init process ended first") },
	},
	{
		name:   "relay crashes",
		script: restless + "wait",
		end: func(t *testing.T, b *finalBuild) {
			require.NoError(t, syscall.Kill(relayPID(t, b.vm), syscall.SIGKILL))
		},
		routes: []connector.Route{connector.Auto, connector.Relay},
		reason: instance.RunnerSystemFailure,
		check: func(t *testing.T, err error) {
			lost := (*relay.Error)(nil)
			require.ErrorAs(t, err, &lost)
		},
	},
	{
		name:   "connection lost",
		script: restless + "wait",
		end:    func(_ *testing.T, b *finalBuild) { b.proxy.Cut() },
		reason: instance.RunnerSystemFailure,
		lost:   true,
		check: func(t *testing.T, err error) {
			lost := (*mux.ConnError)(nil)
			require.ErrorAs(t, err, &lost)
		},
	},
}

// allRoutes are the routes of builds.
var allRoutes = []connector.Route{connector.Auto, connector.Relay, connector.Streamlocal, connector.Session}

// runnerScript returns the path of a step runner that is a shell script.
func runnerScript(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runner.sh")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}

//stepmux:acceptance executor | Whatever ends a build (success, failure, cancel, abort, timeout, a crash of serve or
//stepmux:more relay, a lost connection), its reason is true, bridges close before serve, and nothing is left on the VM
//stepmux:reliability promises | Failures of the machine or the step runner are not reported as the script's, and the
//stepmux:more script's own failures are
//stepmux:with instance.TestServeThatIsToldToEndIsTheSystemsFailure, instance.TestFailuresOfScriptsAreTheScripts
//stepmux:with remote/step/engine.TestFailureOfTheMachineIsNotTheStepsFailure
//stepmux:reliability promises | Nothing is left on a VM when a build has ended for any reason, or when its manager was
//stepmux:more killed
//stepmux:with cmd/stepmux.TestManagerThatEndsLeavesNothingOnTheVM
//stepmux:with remote/relay.TestRelayThatEndsRemovesTheDirectoriesOfThoseItKills
//stepmux:with remote/proc.TestKilledInitTakesProcessesOfOtherGroupsAlong, instance.TestWhatAJobStopsIsEndedWithItsBuild
//stepmux:with instance.TestDaemonOfAJobThatKillsItsEndsIsEndedWithItsBuild
//stepmux:with instance.TestTheNextBuildEndsWhatADeadManagersBuildLeft
func TestWhateverEndsABuildItsReasonIsTrueAndNothingIsLeft(t *testing.T) {
	for _, state := range finalStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			v := newVM(t, sshtest.OpenSSH(t))
			if state.runner != nil {
				v.runner = []string{state.runner(t, v.runner[0])}
			}
			routes := state.routes
			if routes == nil {
				routes = allRoutes
			}
			for _, route := range routes {
				o := &order{}
				b := &finalBuild{vm: v, proxy: sshtest.Proxy(t, v.Addr)}
				p := v.via(t, b.proxy.Addr()).provider(t, 1, func(c *instance.Config, _ *instance.Instance) {
					c.Route, c.Trace = route, o.trace()
				})
				out := &sshtest.Log{}
				b.executor = p.Executor(instance.Build{ID: "b1", Log: out})
				var ctx context.Context
				ctx, b.cancel = context.WithCancel(sshtest.Within(t))
				job := script(state.script)
				if state.job != nil {
					state.job(&job)
				}
				ended := make(chan error, 1)
				go func() { ended <- b.run(ctx, job) }()
				if state.end != nil {
					out.Await(t, "started")
					state.end(t, b)
				}
				err := <-ended
				require.NoError(t, b.executor.Cleanup(sshtest.Within(t)), "%s", route)
				if state.lost {
					require.Len(t, b.executor.Left(), 1)
					require.Contains(t, b.executor.Left()[0], "unknown: the connection was lost", "%s", route)
				} else {
					require.Empty(t, b.executor.Left(), "%s", route)
				}
				if state.reason == "" {
					require.NoError(t, err, "%s", route)
				} else {
					requireReason(t, err, state.reason, state.code)
				}
				if state.check != nil {
					state.check(t, err)
				}
				if !state.early {
					o.require(t)
				}
				v.requireClean(t)
				require.Zero(t, p.Stat().Instances[0].Used, "%s", route)
				if !state.early {
					require.NoError(t, build(sshtest.Within(t), p, "b2", script("true"), &sshtest.Log{}), "%s: the next build", route)
				}
				require.NoError(t, p.Close())
				b.cancel()
				v.requireClean(t)
			}
		})
	}
}

// run takes the build through its executor, but for Cleanup.
func (b *finalBuild) run(ctx context.Context, job connector.Job) error {
	err := b.executor.Prepare(ctx)
	if err == nil {
		_, err = b.executor.Connect(ctx)
	}
	if err == nil {
		err = b.executor.Execute(ctx, job)
	}
	return err
}
