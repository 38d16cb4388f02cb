package standalone

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// patience is the deadline of waits for events that must happen. No passing test takes that long.
const patience = 30 * time.Second

// trial is a job under test.
type trial struct {
	t              testing.TB
	cfg            Config
	stdout, stderr remotetest.Buffer
	all            remotetest.Buffer // both streams, with "<name status>" for each change of a step
}

func newTrial(t testing.TB) *trial {
	t.Helper()
	tr := &trial{t: t}
	tr.cfg = Config{
		WorkDir: t.TempDir(), TempDir: t.TempDir(), Grace: patience,
		Stdout: io.MultiWriter(&tr.all, &tr.stdout), Stderr: io.MultiWriter(&tr.all, &tr.stderr),
		Observe: func(r engine.StepResult) {
			_, _ = tr.all.Write([]byte("<" + strings.Join(r.Path, "/") + " " + r.Status.String() + ">"))
		},
	}
	return tr
}

// read reads the source, which must be valid. Its work directory is the trial's.
func (tr *trial) read(src Source) *Job {
	tr.t.Helper()
	src.WorkDir = tr.cfg.WorkDir
	j, err := Read(src)
	require.NoError(tr.t, err)
	return j
}

// steps reads a list of steps.
func (tr *trial) steps(text string) *Job {
	tr.t.Helper()
	return tr.read(Source{Name: "job.yml", Text: []byte(text), Format: Steps})
}

// run runs a job to its end, and requires that nothing of it is left.
func (tr *trial) run(ctx, abort context.Context, j *Job) (*Report, error) {
	tr.t.Helper()
	report, err := Run(ctx, abort, j, tr.cfg)
	left, readErr := os.ReadDir(tr.cfg.TempDir)
	require.NoError(tr.t, readErr)
	require.Empty(tr.t, left)
	return report, err
}

// finish runs a job without stopping it.
func (tr *trial) finish(j *Job) *Report {
	tr.t.Helper()
	report, err := tr.run(tr.t.Context(), tr.t.Context(), j)
	require.NoError(tr.t, err)
	return report
}

func (tr *trial) file(name, text string) {
	tr.t.Helper()
	path := filepath.Join(tr.cfg.WorkDir, name)
	require.NoError(tr.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(tr.t, os.WriteFile(path, []byte(text), 0o644))
}

// requireGone waits until the process with the number in text has ended.
func requireGone(t testing.TB, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return unix.Kill(pid, 0) == unix.ESRCH }, patience, time.Millisecond)
}
