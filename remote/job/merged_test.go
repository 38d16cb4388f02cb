package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/job/joblog"
)

func TestMergedLogHasBothStreamsInOrderAndNamesTheSteps(t *testing.T) {
	s := newStore(t, Config{})
	going := filepath.Join(t.TempDir(), "go")
	// Each line is there before the next is written.
	wait := func(n string) string { return "; while [ ! -e " + going + n + " ]; do sleep 0.01; done; " }
	spec := yaml(t, "1", `
- {name: a, script: "echo out1`+wait("1")+`echo err1 >&2`+wait("2")+`printf out2"}
- {name: never, script: echo, when: on_failure}
- {name: b, script: "printf 'err2\r\n' >&2"}
`)
	spec.Merged = true
	require.NoError(t, s.Create(spec))
	f := follow(t, s, "1")
	seen := ""
	await := func(text string) {
		buf := make([]byte, 1000)
		for !strings.HasSuffix(seen, text) {
			n, err := f.ReadAt(t.Context(), Merged, buf, int64(len(seen)))
			require.NoError(t, err)
			seen += string(buf[:n])
		}
	}
	await("out1\n")
	require.NoError(t, os.WriteFile(going+"1", nil, 0o600))
	await("err1\n")
	require.NoError(t, os.WriteFile(going+"2", nil, 0o600))
	require.Equal(t, "Running step \"a\"\nout1\nerr1\nout2\nRunning step \"b\"\nerr2\r\n", read(t, f, Merged, 0))
	require.Equal(t, "out1\nout2", read(t, f, Stdout, 0), "and nothing of the runner's own")
	require.Equal(t, "err1\nerr2\r\n", read(t, f, Stderr, 0))
	_, err := f.ReadAt(t.Context(), Merged, make([]byte, 1), 1000)
	require.ErrorIs(t, err, joblog.ErrOffset)
}

func TestMergedLogIsThereForJobsThatWereAskedTo(t *testing.T) {
	s := newStore(t, Config{})
	run(t, s, script(t, "1", "echo"))
	_, err := follow(t, s, "1").ReadAt(t.Context(), Merged, make([]byte, 1), 0)
	require.ErrorIs(t, err, ErrNotMerged)
}

func TestMergedLogHidesASecretThatIsInNeitherStream(t *testing.T) {
	logs := make([]*joblog.Log, len(streamNames))
	for stream, name := range streamNames {
		log := joblog.New(filepath.Join(t.TempDir(), name), 0)
		defer log.Remove()
		logs[stream] = log
	}
	o := &output{}
	require.NoError(t, o.secrets.Add("half-of-secret"))
	o.connect(logs, nil)
	_, err := o.streams[Stdout].Write([]byte("x half-of-"))
	require.NoError(t, err)
	_, err = o.streams[Stderr].Write([]byte("secret"))
	require.NoError(t, err)
	require.NoError(t, o.close())
	require.EqualValues(t, len("x half-of-"), logs[Stdout].Len())
	require.EqualValues(t, len("secret"), logs[Stderr].Len())
	require.EqualValues(t, len("x [MASKED]"), logs[Merged].Len())
}

func TestStopKeepsAJobThatHasEnded(t *testing.T) {
	s := newStore(t, Config{Grace: patience})
	require.NoError(t, s.Create(script(t, "1", "trap 'echo cleanup; exit' TERM; echo ready; sleep 4740 & wait")))
	f := follow(t, s, "1")
	awaitOutput(t, f)
	s.Stop("nope")
	s.Stop("1")
	stat, _, err := f.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, Cancelled, stat.State)
	require.Equal(t, "ready\ncleanup\n", read(t, f, Stdout, 0))
	s.Stop("1")
	require.Len(t, s.List(), 1)
}

// Symptom: a job that was closed while it ran was known until it had ended, and its id was taken.
//
//stepmux:faults users | A job that was closed is still listed, and its id is taken
//stepmux:with remote/job/service.TestManagersCancelKeepsTheJobAndCloseRemovesIt
func TestDiscardForgetsAJobAtOnceAndRemovesItWhenItHasEnded(t *testing.T) {
	s := newStore(t, Config{Grace: patience})
	s.Discard("nope")
	run(t, s, script(t, "ended", "echo"))
	s.Discard("ended")
	require.Empty(t, s.List())
	require.Empty(t, dirs(t, s))

	require.NoError(t, s.Create(script(t, "1", "trap 'echo cleanup; exit' TERM; echo ready; sleep 4740 & wait")))
	f := follow(t, s, "1")
	awaitOutput(t, f)
	s.Discard("1")
	s.Discard("1")
	require.Empty(t, s.List())
	_, err := s.Follow("1")
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, s.Create(script(t, "1", "echo another")), "the id is free")
	another := follow(t, s, "1")
	stat, _, err := f.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, Cancelled, stat.State)
	_, _, err = another.Wait(t.Context())
	require.NoError(t, err)
	require.Len(t, s.List(), 1, "the end of the first does not remove the second")
	s.Discard("1")
	require.Empty(t, s.List())
	another.Close()
	require.Equal(t, "ready\ncleanup\n", read(t, f, Stdout, 0), "but not for those who follow it")
	f.Close()
	require.Eventually(t, func() bool { return len(dirs(t, s)) == 0 }, time.Minute, time.Millisecond)
}

func TestADiscardedJobCountsAndIsEndedByShutdown(t *testing.T) {
	s := newStore(t, Config{Grace: patience, MaxJobs: 1})
	require.NoError(t, s.Create(script(t, "1", "trap '' TERM; echo ready; sleep 4740")))
	f := follow(t, s, "1")
	awaitOutput(t, f)
	s.Discard("1")
	require.ErrorIs(t, s.Create(script(t, "2", "true")), ErrFull)
	require.NoError(t, s.Shutdown(t.Context(), 0))
	_, _, err := f.Wait(t.Context())
	require.NoError(t, err, "it has ended")
	f.Close()
}
