package instance_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/sshtest"
)

// lingers returns an executor of a build that lingers on v, which is prepared, and its log.
func lingers(t *testing.T, p *instance.Provider, id string, linger time.Duration) (*instance.Executor, *sshtest.Log) {
	t.Helper()
	log := &sshtest.Log{}
	e := p.Executor(instance.Build{ID: id, Log: log, Linger: &linger})
	t.Cleanup(func() { _ = e.Cleanup(context.Background()) })
	require.NoError(t, e.Prepare(t.Context()))
	return e, log
}

// jobLines returns the lines of a log that are the job's.
func jobLines(log *sshtest.Log) string {
	var all []string
	for line := range strings.Lines(log.String()) {
		if !strings.HasPrefix(line, "step runner: ") {
			all = append(all, line)
		}
	}
	return strings.Join(all, "")
}

// counting is a script that says n numbers, one each time the file turn has become longer, and fails with 7.
const counting = `i=0
while [ $i -lt %d ]; do
	i=$((i+1)); echo "line $i"; echo "err $i" >&2
	until [ "$(wc -l <%s)" -ge $i ]; do sleep 0.01; done
done
exit 7`

func countedTo(n int) (text string) {
	for i := range n {
		text += fmt.Sprintf("line %d\n", i+1)
	}
	return text
}

// onlyStdout drops the lines of stderr, which come in no order with those of stdout.
func onlyStdout(text string) (out string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "line ") {
			out += line
		}
	}
	return out
}

func TestABuildThatLingersOutlivesItsLink(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		const cuts = 6
		proxy := sshtest.Proxy(t, v.Addr)
		p := v.via(t, proxy.Addr()).provider(t, 1, nil)
		e, log := lingers(t, p, "build-1", time.Minute)
		_, err := e.Connect(t.Context())
		require.NoError(t, err)
		turn := filepath.Join(t.TempDir(), "turn")
		require.NoError(t, os.WriteFile(turn, nil, 0o600))
		next := func() {
			f, err := os.OpenFile(turn, os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteString("x\n")
			require.NoError(t, errors.Join(err, f.Close()))
		}
		ended := make(chan error, 1)
		var steps []string
		go func() {
			ended <- e.Execute(t.Context(), connector.Job{
				Script: fmt.Sprintf(counting, cuts, turn),
				OnStep: func(s connector.StepEvent) { steps = append(steps, s.Name+" "+s.Status) },
			})
		}()
		for i := range cuts {
			log.Await(t, fmt.Sprintf("line %d\n", i+1))
			proxy.Cut()
			next()
		}
		err = <-ended
		failed := (*instance.BuildError)(nil)
		require.ErrorAs(t, err, &failed)
		require.Equal(t, instance.ScriptFailure, failed.Reason, "%v", err)
		require.Equal(t, 7, failed.ExitCode)
		require.Equal(t, countedTo(cuts), onlyStdout(jobLines(log)), "no line is missing, none comes twice")
		require.Equal(t, cuts, strings.Count(jobLines(log), "err "))
		require.Contains(t, log.String(), "step runner: the link to the VM is away (")
		require.Contains(t, log.String(), "step runner: the link to the VM is back after ")
		require.Equal(t, []string{"script running", "script failure"}, steps, "no event comes twice")
		require.NoError(t, e.Cleanup(t.Context()))
		require.Empty(t, e.Left())
		v.requireClean(t)
	})
}

func TestABuildIsLostAfterItsLinger(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	proxy := sshtest.Proxy(t, v.Addr)
	p := v.via(t, proxy.Addr()).provider(t, 1, nil)
	e, log := lingers(t, p, "build-1", 2*time.Second)
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- e.Execute(t.Context(), connector.Job{Script: "echo begun; exec sleep 1000"}) }()
	log.Await(t, "begun\n")
	proxy.Close()
	err = <-ended
	failed := (*instance.BuildError)(nil)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, instance.RunnerSystemFailure, failed.Reason)
	require.ErrorContains(t, err, "the build is lost: its step runner could not be reached for 2s")
	require.Zero(t, failed.ExitCode)
	v.requireClean(t) // the step runner ends by itself
	require.NoError(t, e.Cleanup(t.Context()))
	require.Contains(t, fmt.Sprint(e.Left()), "it ends by itself")
}
