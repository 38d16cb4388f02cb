package replay

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/inspect"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// patience bounds the waits of tests for events that must happen. No test needs all of it.
const patience = 30 * time.Second

// echo is a step that prints its input, and has it as its output.
const echo = `spec:
  inputs:
    message: {type: string}
  outputs:
    said: {type: string}
---
exec:
  command: [bash, -c, 'echo "$0"; printf "{\"name\":\"said\",\"value\":\"%s\"}\n" "$0" >> "${{output_file}}"',
      '${{inputs.message}}']
`

// trial is a project whose job is run, and repeated.
type trial struct {
	t       testing.TB
	work    string
	cache   string
	mirrors map[string]string
	vars    []engine.Variable
	inputs  map[string]string

	log remotetest.Buffer // what the last job wrote
}

func newTrial(t testing.TB) *trial {
	t.Helper()
	return &trial{t: t, work: t.TempDir(), cache: filepath.Join(fetchtest.CacheDir(t), "cache")}
}

func (tr *trial) file(name, text string) {
	tr.t.Helper()
	path := filepath.Join(tr.work, name)
	require.NoError(tr.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(tr.t, os.WriteFile(path, []byte(text), 0o644))
}

func (tr *trial) config() standalone.Config {
	tr.log = remotetest.Buffer{}
	return standalone.Config{
		WorkDir: tr.work, TempDir: tr.t.TempDir(), Stdout: &tr.log, Stderr: &tr.log, Version: "test", Grace: patience,
		Trace: &standalone.Trace{},
	}
}

// store returns a store with the trial's cache.
func (tr *trial) store(change ...func(*fetch.Config)) *fetch.Store {
	tr.t.Helper()
	cfg := fetch.Config{Dir: tr.cache, Mirrors: tr.mirrors}
	for _, c := range change {
		c(&cfg)
	}
	s, err := fetch.New(cfg)
	require.NoError(tr.t, err)
	tr.t.Cleanup(func() { require.NoError(tr.t, s.Close()) })
	return s
}

// record runs a job and returns its trace, as it is in a file.
func (tr *trial) record(text string) *trace.Trace {
	tr.t.Helper()
	j, err := standalone.Read(
		standalone.Source{
			Name:    "job.yml",
			Text:    []byte(text),
			Format:  standalone.Steps,
			Vars:    tr.vars,
			Inputs:  tr.inputs,
			WorkDir: tr.work,
		},
	)
	require.NoError(tr.t, err)
	return tr.recordJob(j)
}

func (tr *trial) recordJob(j *standalone.Job) *trace.Trace {
	tr.t.Helper()
	cfg := tr.config()
	cfg.Fetcher = tr.store()
	report, err := standalone.Run(tr.t.Context(), tr.t.Context(), j, cfg)
	require.NoError(tr.t, err)
	require.NotNil(tr.t, report.Trace, report.Message)
	return parsed(tr.t, report.Trace)
}

// parsed is t as it is read from a file.
func parsed(t testing.TB, tr *trace.Trace) *trace.Trace {
	t.Helper()
	data, err := tr.Encode()
	require.NoError(t, err)
	read, err := trace.Parse(data)
	require.NoError(t, err)
	return read
}

// firstVersion is t as it is in the first version of the format.
func firstVersion(t testing.TB, tr *trace.Trace) *trace.Trace {
	t.Helper()
	old := parsed(t, tr)
	old.Schema, old.Identity.Job.Text = trace.SchemaV1, mask.Text{}
	return parsed(t, old)
}

// prepare plans a replay in the trial's project.
func (tr *trial) prepare(t *trace.Trace, change ...func(*Config)) (*Plan, error) {
	tr.t.Helper()
	cfg := Config{WorkDir: tr.work, Version: "test"}
	for _, c := range change {
		c(&cfg)
	}
	if cfg.Store == nil {
		cfg.Store = tr.store()
	}
	p, err := Prepare(tr.t.Context(), t, cfg)
	if err == nil {
		tr.t.Cleanup(p.Close)
	}
	return p, err
}

// replay repeats t, which can be.
func (tr *trial) replay(t *trace.Trace, change ...func(*Config)) *Result {
	tr.t.Helper()
	p, err := tr.prepare(t, change...)
	require.NoError(tr.t, err)
	result, err := p.Run(tr.t.Context(), tr.t.Context(), t, 1, inspect.Ignore{}, tr.config(), nil)
	require.NoError(tr.t, err)
	return result
}

// places returns where differences are.
func places(r *Result) []string {
	pointers := []string{}
	for _, d := range r.Differences {
		pointers = append(pointers, d.Pointer)
	}
	return pointers
}

func (tr *trial) requireSame(r *Result) {
	tr.t.Helper()
	for _, d := range r.Differences {
		tr.t.Log(d.String())
	}
	require.True(tr.t, r.Same, "%s", tr.log.String())
	require.Zero(tr.t, r.Unknown)
}

// refused requires that t is not repeated, and returns why. Nothing runs: there is no plan for it.
func (tr *trial) refused(t *trace.Trace, change ...func(*Config)) string {
	tr.t.Helper()
	_, err := tr.prepare(t, change...)
	refused := (*RefusedError)(nil)
	require.ErrorAs(tr.t, err, &refused)
	require.False(tr.t, refused.Late)
	return err.Error()
}
