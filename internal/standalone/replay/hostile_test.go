package replay

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// change changes the definition of a trace.
func change(t testing.TB, tr *trace.Trace, fn func(def map[string]any)) *trace.Trace {
	t.Helper()
	var def map[string]any
	require.NoError(t, json.Unmarshal(tr.Identity.Job.Definition, &def))
	fn(def)
	data, err := json.Marshal(def)
	require.NoError(t, err)
	tr.Identity.Job.Definition = data
	return parsed(t, tr)
}

func TestTracesThatNoJobLeavesAreRefused(t *testing.T) {
	tr := newTrial(t)
	tr.file("echo/step.yml", echo)
	first := tr.record(twoSteps)
	step := func(def map[string]any) map[string]any { return def["steps"].([]any)[0].(map[string]any) }
	for name, edit := range map[string]func(tr *trace.Trace){
		"no definition":            func(tr *trace.Trace) { tr.Identity.Job.Definition = nil },
		"a definition of nothing":  func(tr *trace.Trace) { tr.Identity.Job.Definition = json.RawMessage(`{}`) },
		"a definition that is one": func(tr *trace.Trace) { tr.Identity.Job.Definition = json.RawMessage(`[1]`) },
		"a definition of more": func(tr *trace.Trace) {
			tr.Identity.Job.Definition = json.RawMessage(`{"type":"steps","evil":1}`)
		},
		"a reference beside its text": func(tr *trace.Trace) {
			*tr = *change(t, tr, func(def map[string]any) { step(def)["reference"].(map[string]any)["path"] = "/etc" })
		},
		"a name that is a path": func(tr *trace.Trace) {
			*tr = *change(t, tr, func(def map[string]any) { step(def)["name"] = "../../x" })
		},
		"a text that is none":     func(tr *trace.Trace) { tr.Identity.Job.Text.Value = "[" },
		"a text of another job":   func(tr *trace.Trace) { tr.Identity.Job.Text.Value = "- script: evil" },
		"a text of a broken step": func(tr *trace.Trace) { tr.Identity.Job.Text.Value = "- {name: ../x, script: evil}" },
		"a variable that is a path": func(tr *trace.Trace) {
			tr.Identity.Job.Env = mask.Texts{"A/B": {Value: "x"}}
		},
		"a variable with NUL": func(tr *trace.Trace) {
			tr.Identity.Job.OSEnv = mask.Texts{"HOME": {Value: "a\x00b"}}
		},
		"an input that is none": func(tr *trace.Trace) {
			tr.Identity.Job.Inputs = mask.Values{"no": {}}
		},
		"a secret without a salt": func(tr *trace.Trace) {
			tr.Identity.Job.Vars = map[string]trace.Variable{
				"A": {Value: mask.Text{Masked: true, HMAC: strings.Repeat("0", 64)}},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, edited := range []*trace.Trace{parsed(t, first), firstVersion(t, first)} {
				edit(edited)
				_, err := tr.prepare(edited)
				require.Error(t, err)
				refused := (*RefusedError)(nil)
				require.False(t, errors.As(err, &refused), "%v", err)
			}
		})
	}
}

func TestComponentsThatMeanHarmAreRefused(t *testing.T) {
	tr := newTrial(t)
	tr.file("echo/step.yml", echo)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("x"), 0o600))
	first := tr.record(twoSteps)
	for name, edit := range map[string]func(c *trace.Component){
		"a file elsewhere":        func(c *trace.Component) { c.File = "../../etc/passwd" },
		"a directory elsewhere":   func(c *trace.Component) { c.Location = filepath.Dir(secret); c.File = "secret" },
		"no directory":            func(c *trace.Component) { c.Location = "" },
		"a marker of nothing":     func(c *trace.Component) { c.Location = "@tmp/x" },
		"a device":                func(c *trace.Component) { c.Location, c.File = "/dev", "zero" },
		"no digest":               func(c *trace.Component) { c.Digest = nil },
		"a place that is fetched": func(c *trace.Component) { c.Kind, c.Location = trace.Git, "ext::sh -c id" },
		"an option as a version": func(c *trace.Component) {
			c.Kind, c.Location, c.Version = trace.Git, "https://h/g/p", "--upload-pack=id"
		},
		"an archive of a protocol": func(c *trace.Component) { c.Kind, c.Location = trace.Zip, "gopher://h/a.zip" },
		"an image of nothing":      func(c *trace.Component) { c.Kind, c.Location = trace.OCI, "/" },
	} {
		t.Run(name, func(t *testing.T) {
			edited := parsed(t, first)
			edit(edited.Identity.Steps[0].Component)
			why := tr.refused(edited)
			require.True(t, strings.HasPrefix(why, "the replay is refused: step one: "), why)
		})
	}
}

// If a trace says that another command was run than its definition has, that command does not run.
func TestEditedCommandIsNotRun(t *testing.T) {
	tr := newTrial(t)
	tr.file("echo/step.yml", echo)
	first := tr.record(twoSteps)
	evil := filepath.Join(tr.work, "evil")
	first.Identity.Steps[0].Exec.Argv = []mask.Text{{Value: "touch"}, {Value: evil}}
	first.Identity.Steps[0].Definition = json.RawMessage(`{"type":"exec","exec":{"command":["touch","` + evil + `"]}}`)
	first.Identity.Steps[0].Inputs["message"] = mask.Value{Value: first.Identity.Steps[0].Outputs["said"].Value}
	result := tr.replay(parsed(t, first))
	require.NoFileExists(t, evil)
	require.Contains(t, places(result), "/steps/0/exec/argv/0")
}

// nothing is a store that has nothing.
type nothing struct{}

func (nothing) FetchExactly(context.Context, *pb.Reference, fetch.Source, fetch.Credentials) (*fetch.Component, error) {
	return nil, errors.New("there is nothing")
}

func FuzzPrepare(f *testing.F) {
	tr := newTrial(f)
	tr.file("echo/step.yml", echo)
	tr.vars = []engine.Variable{{Key: "TOKEN", Value: "glpat-abcdef123456", Masked: true}}
	first := tr.record("- {name: p, script: 'echo ${{vars.TOKEN}}'}\n- {name: q, step: ./echo, inputs: {message: m}}\n")
	data, err := first.Identity.Canonical()
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(strings.Replace(string(data), `"local"`, `"git"`, 1)))
	f.Add([]byte(`{"job":{"definition":{"type":"steps","steps":[{"name":"a"}]}},"steps":[{"name":"a","steps":[{}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		read := &trace.Trace{Secrets: first.Secrets}
		if json.Unmarshal(data, &read.Identity) != nil {
			return
		}
		p, err := Prepare(t.Context(), read, Config{
			WorkDir: tr.work, Store: nothing{}, Runtime: IgnoreRuntime,
			Secrets: map[string]string{"TOKEN": "glpat-abcdef123456"},
		})
		if err != nil {
			require.NotContains(t, err.Error(), "glpat-abcdef123456")
			require.NotContains(t, err.Error(), "\x1b")
			return
		}
		p.Close()
	})
}
