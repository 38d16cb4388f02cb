package whole_test

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/remote/archive"
)

// elsewhere runs jobs as another machine does: files come and go as archives only.
type elsewhere struct {
	t testing.TB

	mu       sync.Mutex // guards the following
	attempts map[string]int
	digests  map[string]bool // of archives
}

func (e *elsewhere) Execute(ctx, abort context.Context, a *carry.Attempt) (*carry.Outcome, error) {
	dir := e.t.TempDir()
	for _, files := range a.Archives {
		file, err := os.Open(files.Path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil || info.Size() != files.Size {
			return nil, io.ErrUnexpectedEOF
		}
		if _, err := archive.Extract(ctx, file, dir, archive.Bounds{}); err != nil {
			return nil, err
		}
	}
	e.mu.Lock()
	e.attempts[a.Name] = max(e.attempts[a.Name], a.Number)
	for _, files := range a.Archives {
		e.digests[files.Digest] = true
	}
	e.mu.Unlock()
	a.Started()
	report, err := standalone.Run(ctx, abort, a.Job, standalone.Config{
		WorkDir: dir, TempDir: e.t.TempDir(), CacheDir: e.t.TempDir(), Timeout: a.Timeout, Stdout: a.Stdout,
		Stderr: a.Stderr,
	})
	if err != nil {
		return nil, err
	}
	quiet := func(string) {}
	found, err := archive.Find(ctx, archive.Selection{Dir: dir, Paths: a.Patterns(), Info: quiet, Warn: quiet})
	if err != nil {
		return nil, err
	}
	defer found.Close()
	if len(found.Names()) == 0 {
		return a.GatherFrom(ctx, nil, report)
	}
	file, err := os.CreateTemp(string(a.Shelf), "from-")
	if err != nil {
		return nil, err
	}
	defer func() {
		file.Close()
		_ = os.Remove(file.Name())
	}()
	if err := found.Write(ctx, file, archive.TarZstd, "fastest"); err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return a.GatherFrom(ctx, file, report)
}

// A pipeline has the same outcome wherever its jobs run, and equal artifacts are one archive.
func TestJobsThatRunElsewhere(t *testing.T) {
	const text = `
stages: [one, two]
a: {stage: one, script: [echo same > f, mkdir d, echo x > d/x, echo y > d/y],
  artifacts: {paths: [f, d], exclude: [d/y]}}
b: {stage: one, script: [touch -d @1 g, chmod 600 g], artifacts: {paths: [g]}}
b2: {stage: one, script: [touch -d @1 g, chmod 600 g], artifacts: {paths: [g]}}
c: {stage: one, script: [echo NAME=value > v.env, echo u > untracked],
  artifacts: {untracked: true, reports: {dotenv: v.env}}}
d: {stage: one, script: ['echo "<testsuite name=\"s\"/>" > t.xml', exit 1], allow_failure: true,
  artifacts: {paths: [t.xml], reports: {junit: t.xml}}}
e: {stage: one, script: [exit 7], retry: 1, allow_failure: true}
bad: {stage: one, script: [echo 1x > v.env], artifacts: {paths: [none], reports: {dotenv: v.env}}}
all: {stage: two, script: ['echo said $(ls) $(ls d) $NAME']}
`
	outcome := func(executor carry.Executor) (report *whole.Report, lines, said string) {
		tr := newTrial(t, files{"p": "p"})
		tr.cfg.Executor, tr.cfg.WithTests = executor, true
		report = tr.run(t.Context(), text)
		return report, tr.lines("all"), strings.Join(tr.said, "\n")
	}
	there := &elsewhere{t: t, attempts: map[string]int{}, digests: map[string]bool{}}
	here, hereLines, _ := outcome(nil)
	report, lines, said := outcome(there)
	require.Equal(t, "d f g p untracked v.env x value", lines)
	require.Equal(t, hereLines, lines)
	require.Equal(t, told(here), told(report))
	require.Equal(t, string(here.Tests), string(report.Tests))
	require.Contains(t, string(report.Tests), `<testsuite name="d: s">`)
	require.Contains(t, said, `bad: artifacts: dotenv "v.env": line 1`)
	require.Equal(t, 2, there.attempts["e"])
	require.Len(t, there.digests, 4, "those of the project, of a, of c, and one of both b and b2")
}

// A machine that brings no archive, but other bytes, fails only its job.
func TestArtifactsThatAreNoArchive(t *testing.T) {
	tr := newTrial(t, files{"p": "p"})
	tr.cfg.Executor = executor(func(ctx context.Context, a *carry.Attempt) (*carry.Outcome, error) {
		file, err := os.CreateTemp(string(a.Shelf), "from-")
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if _, err := file.WriteString("no archive"); err != nil {
			return nil, err
		}
		return a.GatherFrom(ctx, file, &standalone.Report{Status: whole.Success})
	})
	report, err := whole.Run(t.Context(), t.Context(), tr.read(`
a: {stage: build, script: [":"], artifacts: {paths: [f], exclude: [g]}}
b: {script: [":"]}
c: {script: [":"], needs: []}
`), tr.cfg)
	require.ErrorContains(t, err, `job "a": unpack the artifacts`)
	require.Equal(t, `a failed, b skipped ("a": failed), c success`, told(report))
}

// Artifacts of a machine that is hostile lead nowhere: the job that gets them fails.
func TestArtifactsThatEscape(t *testing.T) {
	tr := newTrial(t, files{"p": "p"})
	there := &elsewhere{t: t, attempts: map[string]int{}, digests: map[string]bool{}}
	tr.cfg.Executor = executor(func(ctx context.Context, a *carry.Attempt) (*carry.Outcome, error) {
		if a.Name != "a" {
			return there.Execute(ctx, t.Context(), a)
		}
		file, err := os.Create(a.Shelf.Path(".hostile"))
		if err != nil {
			return nil, err
		}
		defer file.Close()
		z, err := zstd.NewWriter(file)
		if err != nil {
			return nil, err
		}
		w := tar.NewWriter(z)
		err = errors.Join(w.WriteHeader(&tar.Header{Name: "../up", Mode: 0o600}), w.Close(), z.Close())
		if err != nil {
			return nil, err
		}
		return a.GatherFrom(ctx, file, &standalone.Report{Status: whole.Success})
	})
	report, err := whole.Run(t.Context(), t.Context(), tr.read(`
a: {stage: build, script: [":"], artifacts: {paths: [f]}}
b: {script: [touch ran]}
c: {script: [touch ran], needs: []}
`), tr.cfg)
	require.ErrorContains(t, err, `job "b": unpack "../up": the entry's name has .. in it`)
	require.Equal(t, `a success, b failed, c success`, told(report))
}

type executor func(ctx context.Context, a *carry.Attempt) (*carry.Outcome, error)

func (e executor) Execute(ctx, _ context.Context, a *carry.Attempt) (*carry.Outcome, error) {
	return e(ctx, a)
}
