package instance_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// stateLog is a log that several processes write, one after the other. Each write may be the last.
type stateLog struct {
	mu    sync.Mutex // guards the following
	text  bytes.Buffer
	state buildlog.State
	shut  bool
}

func (l *stateLog) Write([]byte) (int, error) { panic("BUG: a StateWriter is told the state") }

func (l *stateLog) WriteState(text []byte, after buildlog.State) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.shut {
		l.text.Write(text)
		l.state = after
	}
	return len(text), nil
}

func (l *stateLog) get() (string, buildlog.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String(), l.state
}

func (l *stateLog) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		got, _ := l.get()
		return strings.Contains(got, text)
	}, sshtest.Bound, time.Millisecond, "no %q in the log", text)
}

// Each round another provider, as in another process, goes on with the build. In the first three the one before is not
// told: its log is cut off as if it were killed, and it finds that another manager has the build.
func TestABuildGoesOnInAnotherProcess(t *testing.T) {
	t.Parallel()
	const rounds = 6
	v := newVM(t, sshtest.OpenSSH(t))
	turn := filepath.Join(t.TempDir(), "turn")
	require.NoError(t, os.WriteFile(turn, nil, 0o600))
	job := connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run:\n- name: counts\n  script: |\n    " +
		strings.ReplaceAll(fmt.Sprintf(counting, rounds, turn), "\n", "\n    ") + "\n")}}
	linger, secret := time.Minute, strings.Repeat("s", 43)
	all := &stateLog{}
	var place, socket string
	var ended chan error
	var executors []*instance.Executor
	for i := range rounds {
		log := &stateLog{}
		_, log.state = all.get()
		log.text.WriteString(all.text.String())
		p := v.provider(t, 1, nil)
		since := time.Now().Add(-time.Hour)
		e := p.Executor(instance.Build{
			ID: "build-1", Log: log, Linger: &linger, Secret: secret, LogState: log.state, Since: since,
		})
		if i == 0 {
			require.NoError(t, e.Prepare(t.Context()))
			_, err := e.Connect(t.Context())
			require.NoError(t, err)
			place, socket = e.Place()
			require.Equal(t, []string{"vm-1", v.socket("build-1")}, []string{place, socket})
		} else {
			require.NoError(t, e.Resume(t.Context(), place, socket))
			// Symptom: the age of a build in ps was that since the manager had been started again.
			require.WithinDuration(t, since, p.Stat().Instances[0].Builds[0].Since, 0)
		}
		ended = make(chan error, 1)
		result := ended
		go func() { result <- e.Execute(t.Context(), job) }()
		log.await(t, fmt.Sprintf("line %d\n", i+1))
		if i < rounds-1 {
			if i < 3 {
				log.mu.Lock()
				log.shut = true
				log.mu.Unlock()
			} else {
				require.NoError(t, e.Leave(t.Context()))
				requireReason(t, <-result, instance.RunnerSystemFailure, 0)
			}
		}
		all = log
		f, err := os.OpenFile(turn, os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteString("x\n")
		require.NoError(t, err)
		require.NoError(t, f.Close())
		executors = append(executors, e)
	}
	requireReason(t, <-ended, instance.ScriptFailure, 7)
	for _, e := range executors {
		require.NoError(t, e.Cleanup(t.Context()))
		require.Empty(t, e.Left())
	}
	text, state := all.get()
	require.Equal(t, countedTo(rounds), onlyStdout(text), "no line is missing, none comes twice")
	require.Equal(t, rounds, strings.Count(text, "err "), text)
	require.EqualValues(t, len(countedTo(rounds)), state.Stdout)
	v.requireClean(t)
}

// A build that may have run is not started again.
// Symptom: a script that another process had run with the same text was not run; its result was told again.
func TestAScriptRunsAlsoIfAnotherProcessRanTheSame(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	linger, secret, file := time.Minute, strings.Repeat("s", 43), filepath.Join(t.TempDir(), "ran")
	build := func() *instance.Executor {
		return v.provider(t, 1, nil).Executor(instance.Build{ID: "build-1", Linger: &linger, Secret: secret})
	}
	first, second := build(), build()
	require.NoError(t, first.Prepare(t.Context()))
	require.NoError(t, first.Run(t.Context(), []byte("echo x >>"+file)))
	place, socket := first.Place()
	require.NoError(t, first.Leave(t.Context()))
	require.NoError(t, second.Resume(t.Context(), place, socket))
	require.NoError(t, second.Run(t.Context(), []byte("echo x >>"+file)))
	require.NoError(t, second.Cleanup(t.Context()))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "x\nx\n", string(text))
}

//stepmux:reliability promises | A build that may have run is not started again by the next manager
func TestABuildWhoseStepRunnerIsGoneIsNotStartedAgainByAnotherProcess(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 1, nil)
	linger, secret := time.Minute, strings.Repeat("s", 43)
	e, _, ended, _ := waiting(t, p, "build-1", linger)
	place, socket := e.Place()
	require.NoError(t, e.Cleanup(t.Context()))
	requireReason(t, <-ended, instance.RunnerSystemFailure, 0)
	again := v.provider(t, 1, nil).Executor(instance.Build{ID: "build-1", Linger: &linger, Secret: secret})
	err := again.Resume(t.Context(), place, socket)
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "the step runner ended or was killed while no client was attached")
	require.NoError(t, again.Cleanup(t.Context()))
	// Without a socket, as of a Place that was asked for before Connect, another step runner was started.
	none := v.provider(t, 1, nil).Executor(instance.Build{ID: "build-1", Linger: &linger, Secret: secret})
	require.ErrorContains(t, none.Resume(t.Context(), place, ""), "has no socket")
	require.NoError(t, none.Cleanup(t.Context()))
	gone := v.provider(t, 1, nil).Executor(instance.Build{ID: "build-1", Linger: &linger, Secret: secret})
	require.ErrorIs(t, gone.Resume(t.Context(), "vm-2", socket), instance.ErrUnknown)
	require.NoError(t, gone.Cleanup(t.Context()))
	v.requireClean(t)
}
