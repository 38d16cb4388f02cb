package instance_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// ends has what a hostile job knows of the processes of the VM's end of its build.
type ends struct {
	serve, relay int // relay is 0 on a route without
	inits        []int
}

func endsOf(t *testing.T, v *vm, build string, route connector.Route) ends {
	t.Helper()
	e := ends{serve: servePID(t, v, build)}
	e.inits = childrenOf(t, e.serve)
	require.NotEmpty(t, e.inits)
	if route != connector.Session {
		e.relay = relayPID(t, v)
	}
	return e
}

func (e ends) all() []int {
	all := append([]int{e.serve}, e.inits...)
	if e.relay != 0 {
		all = append([]int{e.relay}, all...)
	}
	return all
}

// attacked is a build whose job runs a command line once it is told so.
type attacked struct {
	*vm
	proxy    *sshtest.TCPProxy
	executor *instance.Executor
	ends     ends
	gate     string
	ended    chan error // receives the result of Execute
	cancel   context.CancelFunc
}

// startAttacked starts a build whose job runs first, says "started", and then runs the line that strike sends.
func startAttacked(t *testing.T, v *vm, route connector.Route, first string) *attacked {
	t.Helper()
	b := &attacked{vm: v, proxy: sshtest.Proxy(t, v.Addr), ended: make(chan error, 1)}
	b.gate = filepath.Join(t.TempDir(), "gate")
	p := v.via(t, b.proxy.Addr()).provider(t, 1, func(c *instance.Config, _ *instance.Instance) {
		c.Route, c.StopTimeout = route, 12*time.Second
	})
	out := &sshtest.Log{}
	b.executor = prepared(t, p, "b1", out)
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(sshtest.Within(t))
	job := script(first + `
echo started
until [ -e ` + b.gate + ` ]; do sleep 0.01; done
. ` + b.gate + `
wait`)
	job.Grace = durationpb.New(time.Millisecond)
	go func() { b.ended <- b.executor.Execute(ctx, job) }()
	out.Await(t, "started")
	b.ends = endsOf(t, v, "b1", route)
	return b
}

// strike makes the job run a line.
func (b *attacked) strike(t *testing.T, line string) {
	t.Helper()
	require.NoError(t, os.WriteFile(b.gate+".new", []byte(line+"\n"), 0o600))
	require.NoError(t, os.Rename(b.gate+".new", b.gate))
}

// words returns process IDs for a command line.
func words(pids []int) string { return strings.Trim(fmt.Sprint(pids), "[]") }

// stateOf returns the state of a process as ps shows it, "" if there is none.
func stateOf(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	state, _, _ := strings.Cut(rest, " ")
	return state
}

// await waits until is returns true, which nothing announces.
func await(t *testing.T, is func() bool, what string) {
	t.Helper()
	require.Eventually(t, is, sshtest.Bound, 5*time.Millisecond, what)
}

// daemon starts a process that leaves the job's session and withstands all signals that can be withstood, and waits
// until it does.
func (v *vm) daemon(t *testing.T) string {
	up := filepath.Join(t.TempDir(), "up")
	return `(cd ` + v.tmp + ` && setsid sh -c 'trap "" TERM HUP INT; >` + up + `; while :; do sleep 7; done') &
until [ -e ` + up + ` ]; do sleep 0.01; done`
}

//stepmux:faults service | A job stops the step runner, or what holds its processes: nothing ends, without a message
//stepmux:with remote/proc.TestStoppedInitEndsItsCommand, remote/proc.TestStoppedCommandGetsItsSIGTERM
func TestWhatAJobStopsIsEndedWithItsBuild(t *testing.T) {
	// Symptom: a job stopped relay, serve and inits: processes and directory stayed, the manager waited in vain.
	for name, victims := range map[string]func(ends) []int{
		"relay": func(e ends) []int { return []int{e.relay} },
		"serve": func(e ends) []int { return []int{e.serve} },
		"inits": func(e ends) []int { return e.inits },
		"all":   ends.all,
	} {
		for _, route := range []connector.Route{connector.Auto, connector.Relay, connector.Session} {
			if name == "relay" && route == connector.Session {
				continue
			}
			t.Run(fmt.Sprintf("%s by %s", name, route), func(t *testing.T) {
				t.Parallel()
				v := newVM(t, sshtest.OpenSSH(t))
				v.beOrdinary(t)
				b := startAttacked(t, v, route, v.daemon(t))
				doomed := victims(b.ends)
				b.strike(t, "kill -STOP "+words(doomed))
				for _, pid := range doomed {
					await(t, func() bool { return stateOf(pid) == "T" }, "it is not stopped")
				}
				b.cancel()
				require.NoError(t, b.executor.Cleanup(sshtest.Within(t)))
				<-b.ended
				require.Empty(t, b.executor.Left())
				v.requireClean(t)
			})
		}
	}
}

//stepmux:faults service | A job kills the step runner and what holds its processes, and its daemon lives on
//stepmux:with instance.TestTheNextBuildEndsWhatADeadManagersBuildLeft
//stepmux:with instance.TestTheNextRelayEndsTheDaemonOfAScriptThatKilledItsEnds
//stepmux:with remote/proc.TestOrphansOfAKilledServerAreKilled
func TestDaemonOfAJobThatKillsItsEndsIsEndedWithItsBuild(t *testing.T) {
	// Symptom: setsid, then SIGKILL of serve, relay and inits at once: the daemon lived on.
	for _, route := range []connector.Route{connector.Auto, connector.Relay, connector.Session} {
		t.Run(string(route), func(t *testing.T) {
			t.Parallel()
			v := newVM(t, sshtest.OpenSSH(t))
			v.beOrdinary(t)
			b := startAttacked(t, v, route, v.daemon(t))
			b.strike(t, "kill -STOP "+words(b.ends.all())+"; kill -KILL "+words(b.ends.all()))
			requireReason(t, <-b.ended, instance.RunnerSystemFailure, codeOfKilled(route))
			require.NoError(t, b.executor.Cleanup(sshtest.Within(t)))
			require.Empty(t, b.executor.Left())
			v.requireClean(t)
		})
	}
}

// codeOfKilled is the exit code of a build whose serve was killed: a relay that was killed too cannot tell it.
func codeOfKilled(route connector.Route) int {
	if route == connector.Session {
		return 137
	}
	return 0
}

func TestTheNextBuildEndsWhatADeadManagersBuildLeft(t *testing.T) {
	for name, strike := range map[string]func(ends) string{
		"killed":  func(e ends) string { return "kill -STOP " + words(e.all()) + "; kill -KILL " + words(e.all()) },
		"stopped": func(e ends) string { return "kill -STOP " + words(e.all()) },
	} {
		for _, route := range []connector.Route{connector.Auto, connector.Session} {
			t.Run(fmt.Sprintf("%s by %s", name, route), func(t *testing.T) {
				t.Parallel()
				v := newVM(t, sshtest.OpenSSH(t))
				v.beOrdinary(t)
				b := startAttacked(t, v, route, v.daemon(t))
				b.proxy.Stall() // the manager learns nothing of it, and can do nothing
				b.strike(t, strike(b.ends))
				for _, pid := range b.ends.all() {
					await(t, func() bool { return strings.Contains("TZ", stateOf(pid)) }, "it is neither stopped nor killed")
				}
				b.proxy.Cut()
				<-b.ended
				require.NoError(t, b.executor.Cleanup(sshtest.Within(t)))
				left := b.executor.Left()
				require.Len(t, left, 1)
				require.Contains(t, left[0], "unknown: the connection was lost")

				p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) { c.Route = route })
				e := prepared(t, p, "b2", &sshtest.Log{})
				await(t, func() bool {
					for _, text := range processesNaming(v.tmp) {
						if !strings.Contains(text, " steps ") && !strings.Contains(text, "__init") {
							return false
						}
					}
					_, err := os.Stat(filepath.Dir(v.socket("b1")))
					return os.IsNotExist(err)
				}, "what the first build left is there while the next one runs")
				require.NoError(t, e.Execute(sshtest.Within(t), script("true")), "the next build is not harmed")
				require.NoError(t, e.Cleanup(sshtest.Within(t)))
				require.Empty(t, e.Left())
				require.NoError(t, p.Close())
				v.requireClean(t)
			})
		}
	}
}

//stepmux:faults service | What stays on a machine is not told
//stepmux:with cmd/stepmux.TestWhatMayBeLeftIsInResultAndSummary
//stepmux:reliability promises | If something may be left on a VM, the build's result lists it
//stepmux:with cmd/stepmux.TestWhatMayBeLeftIsInResultAndSummary
func TestWhatStaysIsInTheResult(t *testing.T) {
	// A daemon that removes its marker is not found. If it holds the lock of the build's directory, that stays.
	v := newVM(t, sshtest.OpenSSH(t))
	v.beOrdinary(t)
	sshtest.RequirePart(t, "util-linux", "/usr/bin/flock")
	dir := filepath.Dir(v.socket("b1"))
	pidFile := filepath.Join(t.TempDir(), "pid")
	b := startAttacked(t, v, connector.Session, `(cd / && exec setsid env -i /usr/bin/flock `+dir+
		` /bin/sh -c 'echo $$ >`+pidFile+`; exec /bin/sleep 600') &
until grep -aq ^/usr/bin/flock /proc/$!/cmdline; do sleep 0.01; done`) // without its marker
	// serve is stopped, and its init dies before it: neither takes the lock first.
	require.NoError(t, syscall.Kill(b.ends.serve, syscall.SIGSTOP))
	for _, pid := range append(b.ends.inits, b.ends.serve) {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	<-b.ended
	var holder int
	await(t, func() bool {
		text, _ := os.ReadFile(pidFile)
		_, err := fmt.Sscan(string(text), &holder)
		return err == nil
	}, "the daemon has the lock")
	require.NoError(t, b.executor.Cleanup(sshtest.Within(t)))
	require.Equal(t, []string{"on vm-1: directory " + dir}, b.executor.Left())
	require.Contains(t, b.executor.Forced(), "the step runner ended with ")
	require.NoError(t, syscall.Kill(holder, syscall.SIGKILL))
}

// Symptom: of many builds on a loaded VM some needed steps end, and nothing said why.
//
//stepmux:faults users | A step runner had to be ended from outside, and nothing says why
func TestWhyAStepRunnerHadToBeEndedIsInTheResult(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		linger, stop time.Duration
		harm         bool
		want         string
	}{
		"well":          {0, sshtest.Bound, false, ""},
		"well, lingers": {2 * time.Minute, sshtest.Bound, false, ""},
		"late":          {0, 6 * time.Second, true, "the step runner had not ended after 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			p := v.provider(t, 1, func(cfg *instance.Config, _ *instance.Instance) { cfg.StopTimeout = c.stop })
			e := p.Executor(instance.Build{ID: "b1", Linger: &c.linger, Log: &sshtest.Log{}})
			require.NoError(t, e.Prepare(sshtest.Within(t)))
			_, err := e.Connect(sshtest.Within(t))
			require.NoError(t, err)
			require.NoError(t, e.Execute(sshtest.Within(t), script("true")))
			if c.harm {
				require.NoError(t, syscall.Kill(servePID(t, v, "b1"), syscall.SIGSTOP))
			}
			require.NoError(t, e.Cleanup(sshtest.Within(t)))
			require.Empty(t, e.Left())
			if c.want == "" {
				require.Empty(t, e.Forced())
			}
			require.Contains(t, e.Forced(), c.want)
		})
	}
}

func TestTheNextRelayEndsTheDaemonOfAScriptThatKilledItsEnds(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	v.beOrdinary(t)
	proxy := sshtest.Proxy(t, v.Addr)
	p := v.via(t, proxy.Addr()).provider(t, 1, nil)
	e := p.Executor(instance.Build{ID: "b1", Log: &sshtest.Log{}})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	// The parent of the shell is `steps script`, whose parent is the relay.
	const kill = `relay=$(awk '{print $4}' /proc/$PPID/stat); kill -STOP $relay $PPID; kill -KILL $relay $PPID`
	err := e.Run(sshtest.Within(t), []byte(v.daemon(t)+"\n"+kill))
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.NoError(t, e.Cleanup(sshtest.Within(t)))

	next := v.provider(t, 1, nil)
	require.NoError(t, build(sshtest.Within(t), next, "b2", script("true"), &sshtest.Log{}))
	v.requireClean(t)
}
