package proc

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestStopLetsTheCommandEndWithinItsGrace(t *testing.T) {
	out := newLines(t)
	c := shell(`trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done`)
	c.Stdout = out
	p := start(t, c)
	out.want(t, "ready")
	p.Stop(time.Hour)
	p.Stop(time.Hour)
	require.Equal(t, 7, wait(t, p).Code)
	out.want(t, "bye")
}

func TestStopKillsAfterTheGrace(t *testing.T) {
	tests := map[string][]time.Duration{
		"that was given":         {20 * time.Millisecond},
		"that was shortened":     {time.Hour, 20 * time.Millisecond, time.Hour},
		"of nothing":             {0},
		"of less than nothing":   {-1},
		"that became nothing":    {time.Hour, 0},
		"to processes elsewhere": {time.Millisecond},
	}
	for name, graces := range tests {
		t.Run(name, func(t *testing.T) {
			out, tag := newLines(t), newTag()
			c := shell(`trap '' TERM HUP
				sh -c 'sleep 1000' &
				setsid sh -c 'sleep 1000 & setsid sleep 1000' &
				echo ready; wait; sleep 1000`)
			c.Env = append(c.Env, tag)
			c.Stdout = out
			p := start(t, c)
			out.want(t, "ready")
			for _, grace := range graces {
				p.Stop(grace)
			}
			require.Equal(t, unix.SIGKILL, wait(t, p).Signal)
			eventually(t, func() bool { return len(tagged(t, tag)) == 0 }, "before Close")
			require.NoError(t, p.Close())
		})
	}
}

func TestStopReachesTheGroupAfterItsLeaderHasGone(t *testing.T) {
	out := newLines(t)
	c := shell(`(trap 'echo got TERM; exit' TERM; echo ready; while :; do sleep 0.01; done) & exit 0`)
	c.Stdout = out
	p := start(t, c)
	out.want(t, "ready")
	<-p.exited
	p.Stop(time.Hour)
	out.want(t, "got TERM")
}

func TestStopAfterTheEndDoesNothing(t *testing.T) {
	p := start(t, shell("exit 3"))
	require.Equal(t, 3, wait(t, p).Code)
	p.Stop(0)
	require.NoError(t, p.Close())
	p.Stop(0)
	p.Stop(time.Hour)
	require.Equal(t, 3, wait(t, p).Code)
}

//stepmux:reliability mechanisms | Nothing is left of a job that moved its processes to other sessions |
//stepmux:more `remote/proc/initmain.go`
func TestCloseLeavesNoProcess(t *testing.T) {
	tests := map[string]string{
		"the command":                 `echo ready; exec sleep 1000`,
		"a stopped command":           `echo ready; kill -STOP $$`,
		"grandchildren":               `sh -c 'sh -c "sleep 1000; :"; :' & echo ready; wait`,
		"what left its process group": `setsid sleep 1000 & nohup sleep 1000 & echo ready; wait`,
		"orphans": `(setsid sh -c 'sleep 1000 & sleep 1000' &)
			sh -c 'sleep 1000 &'; echo ready; exit 0`,
		"a deep tree": `depth=${depth:-0}; [ $depth -lt 60 ] || { echo ready; exec sleep 1000; }
			depth=$((depth+1)); export depth; setsid sh -c "$1" sh "$1"; :`,
		"a hundred orphans": `for i in $(seq 100); do setsid sleep 1000 & done; echo ready; exit 0`,
	}
	for name, script := range tests {
		t.Run(name, func(t *testing.T) {
			out, tag := newLines(t), newTag()
			c := shell(script, script)
			c.Env = append(c.Env, tag)
			c.Stdout, c.Stderr = out, os.Stderr
			p := start(t, c)
			out.want(t, "ready")
			eventually(t, func() bool { return len(tagged(t, tag)) > 0 }, "a process that has its environment, after its exec")
			require.NoError(t, p.Close())
			require.Empty(t, tagged(t, tag))
			require.True(t, ended(p.link.init.Pid))
		})
	}
}

func TestCloseCatchesProcessesThatKeepForking(t *testing.T) {
	// Each starts the next one, in a session of its own, and ends.
	self := filepath.Join(t.TempDir(), "runner")
	require.NoError(t, os.WriteFile(self, []byte("#!/bin/sh\necho on\nsetsid \"$0\" &\n"), 0o755))
	out, tag := newLines(t), newTag()
	p := start(t, Command{Argv: []string{self}, Dir: "/", Env: []string{testPath, tag}, Stdout: out})
	for range 10 {
		out.want(t, "on")
	}
	read := make(chan struct{})
	go func() { // or they are held up, which is not the point
		defer close(read)
		for out.scan.Scan() {
			continue
		}
	}()
	require.NoError(t, p.Close())
	require.Empty(t, tagged(t, tag))
	out.Close()
	<-read
}

func TestInitThatIsKilledIsReportedAndTakesTheCommandAlong(t *testing.T) {
	out, tag := newLines(t), newTag()
	c := shell(`sleep 1000 & sleep 1000 & echo ready; wait`)
	c.Env = append(c.Env, tag)
	c.Stdout = out
	p := start(t, c)
	out.want(t, "ready")
	require.NoError(t, p.link.init.Kill())
	_, err := p.Wait(t.Context())
	require.ErrorIs(t, err, errInit)
	require.ErrorContains(t, err, `"/bin/sh"`)
	eventually(t, func() bool { return len(tagged(t, tag)) == 0 }, "the process group")
	require.ErrorIs(t, p.Close(), errInit)
	require.ErrorIs(t, p.Close(), errInit, "every call returns the same")
}

// Symptom: a process that had left the command's process group lived on after the build.
func TestKilledInitTakesProcessesOfOtherGroupsAlong(t *testing.T) {
	out, tag := newLines(t), newTag()
	c := shell(
		`(sleep 1000 &)
		setsid sh -c 'trap "" TERM; (setsid sleep 1000 &); echo away; while :; do sleep 1000; done' & echo ready; wait`,
	)
	c.Env = append(c.Env, tag)
	c.Stdout = out
	beside := shell(`echo ready; sleep 1000`) // one that has nothing to do with it
	besideOut := newLines(t)
	beside.Stdout = besideOut
	other := start(t, beside)
	besideOut.want(t, "ready")
	p := start(t, c)
	require.ElementsMatch(t, []string{"ready", "away"}, []string{out.next(t), out.next(t)})
	require.NoError(t, p.link.init.Kill())
	require.ErrorIs(t, p.Close(), errInit)
	require.Empty(t, tagged(t, tag))
	require.NoError(t, unix.Kill(other.PID(), 0), "the other one runs")
	other.Stop(0)
	require.Equal(t, unix.SIGKILL, wait(t, other).Signal)
}

func TestInitThatHangsIsGivenUp(t *testing.T) {
	tests := map[string]func(*Process){
		"by Stop":  func(p *Process) { p.Stop(0) },
		"by Close": func(p *Process) { p.Close() },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			tag := newTag()
			c := shell(`exec sleep 1000`)
			c.Env = append(c.Env, tag)
			p := start(t, c)
			p.stopping.timeout = 20 * time.Millisecond
			p.link.resume = func() {}
			require.NoError(t, p.link.init.Signal(unix.SIGSTOP))
			end(p)
			_, err := p.Wait(t.Context())
			require.ErrorIs(t, err, errInit)
			require.ErrorIs(t, p.Close(), errInit)
			eventually(t, func() bool { return len(tagged(t, tag)) == 0 }, "the command")
		})
	}
}

func TestInitSurvivesSignalsToAllProcessesOfTheUser(t *testing.T) {
	out := newLines(t)
	c := shell(`trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.01; done`)
	c.Stdout = out
	p := start(t, c)
	out.want(t, "ready")
	p.Stop(time.Hour) // a init that has passed this on is past its start
	out.want(t, "got TERM")
	for _, sig := range []os.Signal{
		unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE,
	} {
		require.NoError(t, p.link.init.Signal(sig))
	}
	require.NoError(t, unix.Kill(p.PID(), unix.SIGTERM))
	out.want(t, "got TERM")
	p.Stop(0)
	require.Equal(t, unix.SIGKILL, wait(t, p).Signal, "the init is still there to tell")
	require.NoError(t, p.Close())
}

func TestChildrenAreFoundWithAndWithoutTheKernelsList(t *testing.T) {
	sleep := exec.Command("sleep", "1000")
	require.NoError(t, sleep.Start())
	require.Contains(t, ListChildren(), sleep.Process.Pid)
	require.Contains(t, scanChildren(), sleep.Process.Pid)
	require.NoError(t, sleep.Process.Kill())
	require.Error(t, sleep.Wait())
	require.NotContains(t, ListChildren(), sleep.Process.Pid)
	require.NotContains(t, scanChildren(), sleep.Process.Pid)
	require.NotContains(t, scanChildren(), os.Getppid())
}
