package instance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// stuckLog takes the first bytes and then does not return until it is let go.
type stuckLog struct {
	sshtest.Log
	once  sync.Once
	stuck chan struct{} // closed when a write is stuck
	free  chan struct{}
}

// newStuckLog is let go at the end of the test: its goroutine ends then.
func newStuckLog(t testing.TB) *stuckLog {
	l := &stuckLog{stuck: make(chan struct{}), free: make(chan struct{})}
	t.Cleanup(func() { close(l.free) })
	return l
}

func (l *stuckLog) Write(p []byte) (int, error) {
	if l.String() != "" {
		l.once.Do(func() { close(l.stuck) })
		<-l.free
	}
	return l.Log.Write(p)
}

// flood is a job that writes more than all windows and buffers on the way take, and does not end by itself. A job that
// writes without end would keep its step runner busy, and so all processors, for as long as its log blocks.
func flood() connector.Job { return script("echo first; head -c 20000000 /dev/zero; exec sleep 600") }

// prepared returns an executor that is connected.
func prepared(t testing.TB, p *instance.Provider, id string, log io.Writer) *instance.Executor {
	t.Helper()
	e := p.Executor(instance.Build{ID: id, Log: log})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	_, err := e.Connect(sshtest.Within(t))
	require.NoError(t, err)
	return e
}

//stepmux:acceptance neighbours | A log that blocks or fails ends its build, with a reason, and no other
//stepmux:with instance.TestALogThatBlocksHoldsUpNeitherOtherBuildsNorItsCleanup
//stepmux:with instance.TestALogThatFailsAtSomeByteEndsItsBuildAndNoOther
func TestALogThatBlocksEndsItsBuild(t *testing.T) {
	// Symptom: a build whose log took nothing never ended, nor did its clean-up.
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) { c.LogTimeout = time.Second })
		e := prepared(t, p, "b1", newStuckLog(t))
		err := e.Execute(sshtest.Within(t), flood())
		requireReason(t, err, instance.RunnerSystemFailure, 0)
		failed := (*buildlog.Error)(nil)
		require.ErrorAs(t, err, &failed)
		require.ErrorContains(t, err, "write build log: the writer took nothing for 1s")
		require.NoError(t, e.Cleanup(sshtest.Within(t)), "while the write goes on")
		require.Zero(t, p.Stat().Instances[0].Used)
		v.requireClean(t)
	})
}

func TestALogThatBlocksHoldsUpNeitherOtherBuildsNorItsCleanup(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 2, func(c *instance.Config, _ *instance.Instance) { c.StopTimeout = 8 * time.Second })
		log := newStuckLog(t)
		e := prepared(t, p, "b1", log)
		ended := make(chan error, 1)
		go func() { ended <- e.Execute(sshtest.Within(t), flood()) }()
		<-log.stuck
		out := &sshtest.Log{}
		require.NoError(t, build(sshtest.Within(t), p, "b2", script("head -c 8000000 /dev/zero; echo end"), out))
		require.Len(t, out.String(), 8_000_004)
		require.Equal(t, 1, v.TotalConns(), "over the same connection")
		require.Empty(t, ended)
		require.NoError(t, e.Cleanup(sshtest.Within(t)))
		requireReason(t, <-ended, instance.RunnerSystemFailure, 0)
		require.Zero(t, p.Stat().Instances[0].Used)
		v.requireClean(t)
	})
}

func TestACancelledBuildDoesNotWaitForALogThatBlocks(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) { c.StopTimeout = 4 * time.Second })
	log := newStuckLog(t)
	e := prepared(t, p, "b1", log)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	job := flood()
	job.Grace = durationpb.New(time.Second)
	go func() { ended <- e.Execute(ctx, job) }()
	<-log.stuck
	cancel()
	requireReason(t, <-ended, instance.JobCanceled, 0)
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	v.requireClean(t)
}

// failingLog fails when it has taken so many bytes.
type failingLog struct{ left int }

var errFull = errors.New("no space left on device")

func (l *failingLog) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	if l.left -= n; n < len(p) {
		return n, errFull
	}
	return n, nil
}

func TestALogThatFailsAtSomeByteEndsItsBuildAndNoOther(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 5, nil)
	var wg sync.WaitGroup
	for i, n := range []int{0, 5, 6, 300_000} {
		wg.Go(func() {
			e := prepared(t, p, fmt.Sprintf("b%d", i), &failingLog{n})
			err := e.Execute(sshtest.Within(t), flood())
			requireReason(t, err, instance.RunnerSystemFailure, 0)
			if !errors.Is(err, errFull) {
				t.Errorf("%v", err)
			}
			if err := e.Cleanup(sshtest.Within(t)); err != nil {
				t.Errorf("%v", err)
			}
		})
	}
	out := &sshtest.Log{}
	require.NoError(t, build(sshtest.Within(t), p, "other", script("seq 20000"), out))
	require.Equal(t, numbers(20000), out.String())
	wg.Wait()
	v.requireClean(t)
}

// numbers is the output of seq.
func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

func TestALogThatFailsIsNoticedWithoutAnotherWrite(t *testing.T) {
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := v.provider(t, 1, nil)
	e := prepared(t, p, "b1", &failingLog{})
	requireReason(t, e.Execute(sshtest.Within(t), script("echo x; exec sleep 600")), instance.RunnerSystemFailure, 0)
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
}

func TestASlowLogGetsAllInOrder(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 2, nil)
	reader, writer := io.Pipe() // a write waits until all of it was read
	var got bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 700)
		for {
			n, err := reader.Read(buf)
			got.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	e := prepared(t, p, "slow", writer)
	ended := make(chan error, 1)
	go func() { ended <- e.Execute(sshtest.Within(t), script("seq 200000")) }()
	out := &sshtest.Log{}
	require.NoError(t, build(sshtest.Within(t), p, "fast", script("seq 20000"), out))
	require.NoError(t, <-ended)
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	require.NoError(t, writer.Close())
	<-read
	require.True(t, numbers(200000) == got.String(), "%d bytes", got.Len())
	require.Equal(t, numbers(20000), out.String())
}

func TestTheStepRunnersOwnWordsAreMarkedInTheLog(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		v.runner = []string{
			runnerScript(t, `[ "$2" != serve ] || exec `+v.runner[0]+` "$@" --allow-unauthenticated; exec `+v.runner[0]+` "$@"`),
		}
		p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) {
			c.Route = connector.Session // a relay starts the program that it runs itself, not the script
		})
		out := &sshtest.Log{}
		job := script("echo 'step runner: no secret guards this socket'; echo mine")
		require.NoError(t, build(sshtest.Within(t), p, "b1", job, out))
		lines := strings.SplitAfter(out.String(), "\n")
		require.Len(t, lines, 4, "%s", out)
		require.Contains(t, lines, "step runner:| no secret guards this socket\n")
		require.Contains(t, lines, "mine\n")
		own := 0
		for _, line := range lines {
			if strings.HasPrefix(line, "step runner: no secret guards this socket: every process of user ") {
				own++
			}
		}
		require.Equal(t, 1, own, "%s", out)
	})
}

func TestAScriptsLogThatBlocksOrFailsEndsIt(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		p := v.provider(t, 4, func(c *instance.Config, _ *instance.Instance) {
			c.LogTimeout, c.StopTimeout = time.Second/2, 8*time.Second
		})
		for name, text := range map[string]string{
			"stdout": "echo first; exec cat /dev/zero",
			"stderr": "echo first >&2; exec cat /dev/zero >&2",
			"little": "echo first; until [ -e /nonexistent ]; do echo more; sleep 0.01; done",
		} {
			log := newStuckLog(t)
			e := p.Executor(instance.Build{ID: "b1", Log: log, Shell: []string{"sh"}})
			require.NoError(t, e.Prepare(sshtest.Within(t)))
			err := e.Run(sshtest.Within(t), []byte(text))
			requireReason(t, err, instance.RunnerSystemFailure, 0)
			require.ErrorContains(t, err, "write build log: the writer took nothing for 500ms", name)
			require.NoError(t, e.Cleanup(sshtest.Within(t)))
		}
		p = v.provider(t, 1, nil)
		e := p.Executor(instance.Build{ID: "b2", Log: &failingLog{3}, Shell: []string{"sh"}})
		require.NoError(t, e.Prepare(sshtest.Within(t)))
		err := e.Run(sshtest.Within(t), []byte("echo first; sleep 600"))
		requireReason(t, err, instance.RunnerSystemFailure, 0)
		require.ErrorIs(t, err, errFull)
		require.NoError(t, e.Cleanup(sshtest.Within(t)))
		v.requireClean(t)
	})
}

func TestCleanupEndsAScriptWhoseLogBlocks(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) {
		c.Grace, c.StopTimeout = time.Second, 7*time.Second
	})
	log := newStuckLog(t)
	e := p.Executor(instance.Build{ID: "b1", Log: log, Shell: []string{"sh"}})
	require.NoError(t, e.Prepare(sshtest.Within(t)))
	ended := make(chan error, 1)
	go func() { ended <- e.Run(sshtest.Within(t), []byte("echo first; exec cat /dev/zero")) }()
	<-log.stuck
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	require.ErrorIs(t, <-ended, instance.ErrCleanedUp)
	require.Zero(t, p.Stat().Instances[0].Used)
	v.requireClean(t)
}
