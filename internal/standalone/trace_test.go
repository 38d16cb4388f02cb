package standalone

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// traced asks for a trace in a file, whose path it returns.
func (tr *trial) traced() string {
	file := filepath.Join(tr.t.TempDir(), "trace.json")
	tr.cfg.Trace, tr.cfg.Version = &Trace{File: file}, "v1"
	return file
}

func TestTraceIsWrittenAtEveryEndOfAJob(t *testing.T) {
	for text, want := range map[string][2]string{
		"- {name: a, script: echo out}":                                   {trace.Success, ""},
		"- {name: a, script: 'echo out; exit 3'}":                         {trace.Failure, "script"},
		"- {name: a, timeout: 10ms, script: 'echo out; sleep 600'}":       {trace.Failure, "script"},
		"- {name: a, script: 'echo out'}\n- {name: b, step: builtin://x}": {trace.Failure, "invalid"},
	} {
		tr := newTrial(t)
		file := tr.traced()
		report := tr.finish(tr.steps(text))
		made, err := trace.Read(file)
		require.NoError(t, err)
		require.Equal(t, want, [2]string{made.Identity.Status, made.Identity.Reason})
		require.Equal(t, report.Trace.ID, made.ID)
		require.Equal(t, trace.FromFile, made.Identity.Job.Source.Kind)
		require.NotEmpty(t, made.Identity.Job.Source.Digest)
		require.Equal(t, "v1", made.Identity.Runtime.Runner.Version)
		require.Equal(t, tr.cfg.WorkDir, made.Volatile.Paths[trace.WorkDir])
	}
}

func TestTraceIsWrittenWhenAJobIsCancelled(t *testing.T) {
	tr := newTrial(t)
	file := tr.traced()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tr.all.On("ready", cancel)
	report, err := tr.run(ctx, t.Context(), tr.steps("- {name: a, script: 'echo ready; sleep 600'}"))
	require.NoError(t, err)
	require.Equal(t, Cancelled, report.Reason)
	made, err := trace.Read(file)
	require.NoError(t, err)
	require.Equal(t, "cancelled", made.Identity.Reason)
}

// The sums of the output are those of the logs: with secrets masked, and split at the steps.
func TestTraceHasThePlaceOfEachStepInTheMaskedLog(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.Trace = &Trace{}
	j := tr.steps("- {name: a, script: 'echo ${{ vars.T }}'}\n- {name: b, script: 'echo b; echo err >&2'}\n")
	j.Vars = []engine.Variable{{Key: "T", Value: "tokentoken", Masked: true}}
	report := tr.finish(j)
	require.Equal(t, "[MASKED]\nb\n", tr.stdout.String())
	runs := report.Trace.Volatile.Steps
	require.Equal(t, []int64{0, 9, 9, 2},
		[]int64{runs[0].Stdout.Offset, runs[0].Stdout.Bytes, runs[1].Stdout.Offset, runs[1].Stdout.Bytes})
	require.Equal(t, int64(4), runs[1].Stderr.Bytes)
}

func TestReportHasNoTraceUnlessItIsAskedFor(t *testing.T) {
	tr := newTrial(t)
	require.Nil(t, tr.finish(tr.steps("- {name: a, script: echo}")).Trace)
}

// smallDisk returns a directory on a disk of 1 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("stepmux-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("part missing: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestTraceSurvivesAJobThatFillsTheDisk(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.WorkDir = smallDisk(t)
	file := filepath.Join(tr.cfg.WorkDir, "trace.json")
	tr.cfg.Trace = &Trace{File: file}
	text := ""
	for range 20 {
		text += "- {script: 'head -c 2000000 /dev/zero >>fill; echo full'}\n"
	}
	report := tr.finish(tr.steps(text))
	require.Equal(t, engine.Success.String(), report.Status)
	require.Contains(t, tr.stderr.String(), "No space left on device")
	made, err := trace.Read(file)
	require.NoError(t, err)
	require.Len(t, made.Identity.Steps, 20)
	require.Equal(t, report.Trace.ID, made.ID)
}

func TestJobWithoutRoomForItsTraceDoesNotRun(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.WorkDir = smallDisk(t)
	filler, err := os.Create(filepath.Join(tr.cfg.WorkDir, "fill"))
	require.NoError(t, err)
	require.NoError(t, unix.Fallocate(int(filler.Fd()), 0, 0, 1<<20-8<<10))
	require.NoError(t, filler.Close())
	tr.cfg.Trace = &Trace{File: filepath.Join(tr.cfg.WorkDir, "trace.json")}
	report := tr.finish(tr.steps("- {script: echo ran}"))
	require.Equal(t, System, report.Reason)
	require.Contains(t, report.Message, "reserve room for")
	require.Empty(t, tr.stdout.String())
}

func TestTraceTakesThePlaceOfATraceOnly(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "trace.json")
	require.NoError(t, CheckTraceFile(path))
	require.NoError(t, WriteRefused(path, errors.New("all wrong"), "v1"))
	require.NoError(t, CheckTraceFile(path))
	made, err := trace.Read(path)
	require.NoError(t, err)
	require.Equal(t, "all wrong", made.Volatile.Message)
	require.Empty(t, made.Identity.Job.Definition)
	for _, text := range []string{"", "{}", `{"id":"x","identity":{`} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.ErrorContains(t, CheckTraceFile(path), "is not a trace")
	}
	require.ErrorContains(t, CheckTraceFile(dir), "it is a directory")
}
