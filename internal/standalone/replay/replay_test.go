package replay

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/inspect"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/trace"
)

const twoSteps = `
- name: one
  step: ./echo
  inputs: {message: fixed}
- name: two
  script: echo "two saw ${{steps.one.outputs.said}}"
`

func TestDeterministicJobIsTheSame(t *testing.T) {
	tr := newTrial(t)
	tr.file("echo/step.yml", echo)
	first := tr.record(twoSteps)
	require.Equal(t, trace.Success, first.Identity.Status)
	tr.requireSame(tr.replay(first))
	require.Contains(t, tr.log.String(), "two saw fixed")
}

var repeats = flag.Int("repeats", 5, "how often the job of 20 steps is repeated")

func TestJobOfTwentyStepsIsTheSameEachTime(t *testing.T) {
	tr := newTrial(t)
	tr.file("echo/step.yml", echo)
	tr.file(
		"nest/step.yml",
		"spec: {outputs: {said: {type: string}}}\n---\nrun:\n- {name: a, step: ../echo, inputs: {message: nested}}\n- "+
			"{name: b, script: 'echo ${{ steps.a.outputs.said }} ${{ work_dir }}'}\ndelegate: a\n",
	)
	var job strings.Builder
	for i := range 20 {
		switch i % 5 {
		case 0:
			fmt.Fprintf(&job, "- {name: s%d, step: ./echo, inputs: {message: m%d}}\n", i, i)
		case 1:
			fmt.Fprintf(&job, "- {name: s%d, script: 'echo ${{ steps.s%d.outputs.said }}; echo two >&2'}\n", i, i-1)
		case 2:
			fmt.Fprintf(&job, "- {name: s%d, step: ./nest, env: {A: '${{ vars.PLAIN }}'}}\n", i)
		case 3:
			fmt.Fprintf(
				&job,
				`- {name: s%d, script: 'echo "{\"name\":\"V%d\",\"value\":\"x\"}" >> ${{ export_file }}; pwd; mktemp -u -p . `+
					`aXX | wc -c'}`+"\n",
				i,
				i,
			)
		default:
			fmt.Fprintf(&job, "- {name: s%d, script: 'exit 3', if: 'vars.PLAIN == \"no\"'}\n", i)
		}
	}
	tr.vars = []engine.Variable{{Key: "PLAIN", Value: "yes"}}
	first := tr.record(job.String())
	require.Equal(t, trace.Success, first.Identity.Status, "%s", first.Volatile.Message)
	require.Len(t, first.Identity.Steps, 20)
	p, err := tr.prepare(first)
	require.NoError(t, err)
	for range *repeats {
		result, err := p.Run(t.Context(), t.Context(), first, 1, inspect.Ignore{}, tr.config(), func(r *standalone.Report) {
			require.Equal(t, first.ID, parsed(t, r.Trace).ID)
		})
		require.NoError(t, err)
		tr.requireSame(result)
	}
}

func TestFailedJobFailsTheSameWay(t *testing.T) {
	tr := newTrial(t)
	first := tr.record(
		"- {name: a, script: 'echo partial; exit 3'}\n- {name: b, script: echo never}\n- {name: c, script: echo last, " +
			"when: always}\n",
	)
	require.Equal(t, new(3), first.Identity.ExitCode)
	result := tr.replay(first)
	tr.requireSame(result)
	require.Equal(t, new(3), result.ExitCode)
}

func TestDifferencesAreNamed(t *testing.T) {
	tr := newTrial(t)
	tr.file(
		"rand/step.yml",
		"spec: {outputs: {v: {type: string}}}\n---\nexec: {command: [bash, -c, 'echo "+
			"\"{\\\"name\\\":\\\"v\\\",\\\"value\\\":\\\"$(wc -c < n)\\\"}\" >> ${{output_file}}; printf x >> n']}\n",
	)
	tr.file("n", "")
	first := tr.record("- {name: r, step: ./rand}\n- {name: s, script: 'true'}\n")
	p, err := tr.prepare(first)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "t2.json")
	cfg := tr.config()
	cfg.Trace.File = file
	result, err := p.Run(t.Context(), t.Context(), first, 3, inspect.Ignore{}, cfg, nil)
	require.NoError(t, err)
	require.False(t, result.Same)
	require.Equal(t, 3, result.Runs)
	require.Equal(t, []string{"/steps/0/outputs/v"}, places(result))
	require.Equal(t, 3, result.Differences[0].Runs)
	require.Equal(t, `step r: outputs.v: "0" -> "1"`, result.Differences[0].String())
	written, err := trace.Read(file)
	require.NoError(t, err)
	require.Equal(t, `1`, written.Identity.Steps[0].Outputs["v"].Value.Text(), "that of the first run that was different")
}

func TestReplayedJobGetsTheSameInputsVariablesAndEnvironment(t *testing.T) {
	t.Setenv("LANG", "en_GB.UTF-8")
	tr := newTrial(t)
	tr.vars = []engine.Variable{
		{Key: "A", Value: "a"},
		{Key: "FILE", Value: "content", File: true},
		{Key: "UNUSED", Value: "u"},
	}
	tr.inputs = map[string]string{"list": `[1, {"a": "b"}]`}
	first := tr.record(`spec: {inputs: {list: {type: array}, text: {type: string, default: d}}}
---
run:
  - {name: one, script: "echo ${{ vars.A }} '${{ inputs.list }}' ${{ inputs.text }}; cat ${{ vars.FILE }}; echo $LANG"}
`)
	t.Setenv("LANG", "C")
	tr.vars = nil
	tr.requireSame(tr.replay(first))
	require.Contains(t, tr.log.String(), `a [1,{"a":"b"}] d`)
	require.Contains(t, tr.log.String(), "content")
	require.Contains(t, tr.log.String(), "en_GB.UTF-8")
}

func TestJobOfAGitLabFileIsRepeated(t *testing.T) {
	tr := newTrial(t)
	text := "variables: {TOP: top}\njob:\n  variables: {MINE: '$TOP/x', TOKEN: secret-value-1}\n  script: ['echo $MINE " +
		"$TOKEN', 'echo $CI_PROJECT_DIR']\n  after_script: [echo after]\n"
	j, err := standalone.Read(standalone.Source{
		Name: ".gitlab-ci.yml", Text: []byte(text), Format: standalone.GitLabCI, WorkDir: tr.work,
		Vars: []engine.Variable{{Key: "TOKEN", Value: "secret-value-2", Masked: true}},
	})
	require.NoError(t, err)
	first := tr.recordJob(j)
	_, err = tr.prepare(first)
	missing := (*MissingError)(nil)
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []string{"TOKEN"}, missing.Names)
	elsewhere := newTrial(t)
	elsewhere.requireSame(elsewhere.replay(first, func(c *Config) {
		c.Secrets = map[string]string{"TOKEN": "secret-value-2"}
	}))
	require.Contains(t, elsewhere.log.String(), elsewhere.work, "the project is where it is now")
}

func TestBranchThatMovedOnIsNotFollowed(t *testing.T) {
	root := t.TempDir()
	server := fetchtest.ServeGit(t, root)
	r := fetchtest.NewRepository(t, filepath.Join(root, "c/echo"))
	r.Commit(
		"main",
		fetchtest.Texts(map[string]string{"steps/step.yml": "spec: {}\n---\nexec: {command: [echo, first]}\n"}),
	)
	tr := newTrial(t)
	first := tr.record(
		"- {name: a, step: '" + server.URL + "/c/echo@main'}\n- {name: b, step: '" + server.URL + "/c/echo@main'}\n",
	)
	require.Equal(t, trace.Success, first.Identity.Status, "%s", first.Volatile.Message)
	r.Commit(
		"main",
		fetchtest.Texts(map[string]string{"steps/step.yml": "spec: {}\n---\nexec: {command: [echo, second]}\n"}),
	)

	tr.requireSame(tr.replay(first))
	require.Contains(t, tr.log.String(), "first")
	tr.cache = filepath.Join(fetchtest.CacheDir(t), "empty")
	tr.requireSame(tr.replay(first)) // fetched again
	require.NotContains(t, tr.log.String(), "second")
	server.Close()
	offline := func(c *Config) { c.Store = tr.store(func(s *fetch.Config) { s.Offline = true }) }
	tr.requireSame(tr.replay(first, offline))
	tr.cache = filepath.Join(fetchtest.CacheDir(t), "another")
	require.Contains(t, tr.refused(first, offline), "offline")
}

func TestFetchedStepThatWasTamperedWithIsRefused(t *testing.T) {
	root := t.TempDir()
	server := fetchtest.ServeGit(t, root)
	r := fetchtest.NewRepository(t, filepath.Join(root, "c/echo"))
	r.Commit(
		"main",
		fetchtest.Texts(map[string]string{"steps/step.yml": "spec: {}\n---\nexec: {command: [echo, first]}\n"}),
	)
	tr := newTrial(t)
	first := tr.record("- {name: before, script: 'echo x >> ran'}\n- {name: a, step: '" + server.URL + "/c/echo@main'}\n")
	require.NoError(t, os.Remove(filepath.Join(tr.work, "ran")))
	for name, change := range map[string]func(d trace.Digest){
		"another tree":   func(d trace.Digest) { d[trace.SHA256Tree] = strings.Repeat("0", 64) },
		"no tree":        func(d trace.Digest) { delete(d, trace.SHA256Tree) },
		"another commit": func(d trace.Digest) { d[trace.GitCommit] = strings.Repeat("0", 40) },
		"no commit":      func(d trace.Digest) { delete(d, trace.GitCommit) },
	} {
		t.Run(name, func(t *testing.T) {
			edited := parsed(t, first)
			change(edited.Identity.Steps[1].Component.Digest)
			require.Contains(t, tr.refused(edited), "step a: "+server.URL+"/c/echo")
			require.NoFileExists(t, filepath.Join(tr.work, "ran"))
		})
	}
	edited := parsed(t, first)
	edited.Identity.Steps[1].Component = nil
	p, err := tr.prepare(edited)
	require.NoError(t, err)
	_, err = p.Run(t.Context(), t.Context(), edited, 1, inspect.Ignore{}, tr.config(), nil)
	refused := (*RefusedError)(nil)
	require.ErrorAs(t, err, &refused)
	require.True(t, refused.Late)
	require.ErrorContains(t, err, "not in the trace")
	require.NotContains(t, tr.log.String(), "first")
}

func TestStepOfTheProjectThatWasChangedIsRefused(t *testing.T) {
	tr := newTrial(t)
	tr.file("echo/step.yml", echo)
	tr.file("echo/data/x", "x")
	first := tr.record(twoSteps)
	tr.file("echo/step.yml", strings.Replace(echo, `echo "$0"`, `echo "-$0"`, 1))
	why := tr.refused(first)
	require.Contains(t, why, "./echo")
	require.Contains(t, why, "digest")
	result := tr.replay(first, func(c *Config) { c.AllowChanged = true })
	require.Contains(t, places(result), "/steps/0/component/digest/sha256")
	require.Contains(t, tr.log.String(), "-fixed")

	tr.file("echo/step.yml", echo)
	tr.requireSame(tr.replay(first))
	tr.file("echo/data/x", "y")
	require.Contains(t, tr.refused(first), "directory was")
	require.NoError(t, os.RemoveAll(filepath.Join(tr.work, "echo")))
	require.Contains(t, tr.refused(first), "no such file")
}

func TestOtherProgramsAreRefused(t *testing.T) {
	tr := newTrial(t)
	tr.file("echo/step.yml", echo)
	first := tr.record(twoSteps)
	edited := parsed(t, first)
	edited.Identity.Steps[0].Exec.Program.Digest[trace.SHA256] = strings.Repeat("0", 64)
	why := tr.refused(edited)
	require.Contains(t, why, "bash")
	require.Contains(t, why, "digest")
	for _, mode := range []Runtime{WarnRuntime, IgnoreRuntime} {
		p, err := tr.prepare(edited, func(c *Config) { c.Runtime = mode })
		require.NoError(t, err)
		require.Equal(t, mode == WarnRuntime, strings.Contains(strings.Join(p.Job.Notices, "\n"), "bash"))
		result, err := p.Run(t.Context(), t.Context(), edited, 1, inspect.Ignore{Runtime: true}, tr.config(), nil)
		require.NoError(t, err)
		tr.requireSame(result)
	}
	edited = parsed(t, first)
	edited.Identity.Runtime.Runner.Digest[trace.SHA256] = strings.Repeat("0", 64)
	require.Contains(t, tr.refused(edited), "stepmux: its digest")
	edited = parsed(t, first)
	edited.Identity.Runtime.Arch = "pdp11\x1b"
	why = tr.refused(edited)
	require.Contains(t, why, "pdp11")
	require.NotContains(t, why, "\x1b")
	edited = parsed(t, first)
	edited.Identity.Steps[0].Exec.Program.Path.Value = "/usr/bin/not-there"
	require.Contains(t, tr.refused(edited), "no such file")
}

func TestSecretsAreAskedForByName(t *testing.T) {
	tr := newTrial(t)
	tr.vars = []engine.Variable{
		{Key: "TOKEN", Value: "glpat-abcdef123456", Masked: true},
		{Key: "OTHER", Value: "other-secret-1", Masked: true},
	}
	first := tr.record("- {name: p, script: 'echo len ${{vars.TOKEN}} | wc -c; echo ${{vars.OTHER}}'}\n")
	_, err := tr.prepare(first)
	missing := (*MissingError)(nil)
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []string{"OTHER", "TOKEN"}, missing.Names)
	require.ErrorContains(t, err, "--secret TOKEN=env:")

	give := func(token string) func(*Config) {
		return func(c *Config) { c.Secrets = map[string]string{"TOKEN": token, "OTHER": "other-secret-1\n"} }
	}
	tr.requireSame(tr.replay(first, give("glpat-abcdef123456")))
	require.Contains(t, tr.log.String(), "23")
	require.NotContains(t, tr.log.String(), "other-secret")
	tr.requireSame(tr.replay(first, give("glpat-abcdef123456\n"))) // as a file has it

	p, err := tr.prepare(first, give("glpat-wrong"))
	require.NoError(t, err)
	require.Contains(t, strings.Join(p.Job.Notices, "\n"), "TOKEN is not the one")
	result := tr.replay(first, give("glpat-wrong"))
	require.Contains(t, places(result), "/job/vars_used/TOKEN/value")
	for _, d := range result.Differences {
		require.NotContains(t, d.String(), "glpat")
	}

	_, err = tr.prepare(first, func(c *Config) { c.Secrets = map[string]string{"TOKEN": "a", "OTHER": "b", "TYPO": "c"} })
	require.ErrorContains(t, err, "TYPO")
}

func TestSecretInTheTextOfAJobIsGivenByItsPlace(t *testing.T) {
	tr := newTrial(t)
	tr.vars = []engine.Variable{{Key: "TOKEN", Value: "glpat-abcdef123456", Masked: true}}
	const text = "- {name: p, script: 'echo glpat-abcdef123456'}\n- {name: q, script: 'echo ${{ vars.TOKEN }}'}\n"
	second := tr.record(text)
	for _, c := range []struct {
		trace        *trace.Trace
		place, value string
	}{
		{second, "/job/text", text},
		{firstVersion(t, second), "/job/definition/steps/0/", "echo glpat-abcdef123456"},
	} {
		_, err := tr.prepare(c.trace, func(c *Config) { c.Secrets = map[string]string{"TOKEN": "glpat-abcdef123456"} })
		missing := (*MissingError)(nil)
		require.ErrorAs(t, err, &missing)
		require.Len(t, missing.Names, 1)
		require.True(t, strings.HasPrefix(missing.Names[0], c.place), missing.Names[0])
		give := func(text string) func(*Config) {
			return func(c *Config) {
				c.Secrets = map[string]string{"TOKEN": "glpat-abcdef123456", missing.Names[0]: text}
			}
		}
		tr.requireSame(tr.replay(c.trace, give(c.value)))
		require.NotContains(t, tr.log.String(), "glpat")
	}
}

func TestReplayRunsTheTextOfTheTrace(t *testing.T) {
	tr := newTrial(t)
	const text = "# A comment.\n- {name: a, script: 'echo a'}\n"
	first := tr.record(text)
	require.Equal(t, text, first.Identity.Job.Text.Value)
	tr.requireSame(tr.replay(first))
	first.Identity.Job.Text.Value = strings.Replace(text, "echo a", "echo b", 1)
	_, err := tr.prepare(parsed(t, first))
	require.ErrorIs(t, err, ErrTrace)
	require.ErrorContains(t, err, "not the one that the text of the job compiles to")
}
