package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// shownValue is x as a value that is no secret.
func shownValue(t testing.TB, x any) mask.Value {
	t.Helper()
	v, err := expr.New(x)
	require.NoError(t, err)
	return mask.Value{Value: v}
}

// twoSteps is a trace of a job with two steps, the second of which has one of its own.
func twoSteps(t testing.TB) *trace.Trace {
	t.Helper()
	hex := strings.Repeat("0a", 32)
	exec := func() *trace.Exec {
		return &trace.Exec{
			Argv: []mask.Text{{Value: "bash"}, {Value: "-c"}, {Value: "echo"}}, WorkDir: mask.Text{Value: trace.WorkDir},
			Program: &trace.Program{Path: mask.Text{Value: "/bin/bash"}, Digest: trace.Digest{trace.SHA256: hex}},
		}
	}
	tr := &trace.Trace{
		Identity: trace.Identity{
			Job: trace.Job{
				Source:     trace.Source{Kind: "file", Digest: trace.Digest{trace.SHA256: hex}},
				Definition: json.RawMessage(`{"steps":[{"name":"one"},{"name":"outer"}]}`),
				Vars:       map[string]trace.Variable{"PLAIN": {Value: mask.Text{Value: "p"}}},
			},
			Runtime: trace.Runtime{OS: "linux", Arch: "amd64"},
			Status:  trace.Success,
			Steps: []trace.Step{
				{
					Path: "0", Name: "one", Kind: trace.KindExec, Status: trace.Success,
					Component: &trace.Component{
						Kind:     trace.Local,
						Location: "@work/echo",
						File:     "step.yml",
						Digest:   trace.Digest{trace.SHA256: hex, trace.SHA256Tree: hex},
					},
					Exec: exec(), Outputs: mask.Values{"said": shownValue(t, "a"), "a/b ~": shownValue(t, 1)},
				},
				{
					Path: "1", Name: "outer", Kind: trace.KindSteps, Status: trace.Success,
					Component: &trace.Component{
						Kind: trace.Git, Location: "https://h/g/p", Version: "main", ResolvedRef: "refs/heads/main", Dir: "steps",
						File:   "step.yml",
						Digest: trace.Digest{trace.GitCommit: strings.Repeat("0a", 20), trace.SHA256Tree: hex},
					},
					Steps: []trace.Step{{Path: "1.0", Name: "inner", Kind: trace.KindExec, Status: trace.Success, Exec: exec()}},
				},
			},
		},
		Volatile: trace.Volatile{
			TraceID: "0f0f", Started: time.Unix(1700000000, 0).UTC(), Ended: time.Unix(1700000002, 0).UTC(),
			Steps: []trace.StepRun{
				{Path: "0", Started: time.Unix(1700000000, 0).UTC(), Ended: time.Unix(1700000001, 0).UTC(), Message: "it said"},
			},
		},
	}
	tr.Identity.Runtime.Runner.Version, tr.Identity.Runtime.Runner.Digest = "1", trace.Digest{trace.SHA256: hex}
	logs := &tr.Identity.Steps[0].Logs
	logs.Stdout, logs.Stderr = trace.Log{Bytes: 1, SHA256: hex}, trace.Log{SHA256: hex}
	return tr
}

// differences returns the differences of b from a, as text.
func differences(t testing.TB, a, b *trace.Trace, ignore Ignore) []string {
	t.Helper()
	c, err := Compare(a, b, ignore)
	require.NoError(t, err)
	lines := []string{}
	for _, d := range c.Differences {
		lines = append(lines, d.Pointer+" | "+d.String())
	}
	return lines
}

func TestEqualTracesAreTheSame(t *testing.T) {
	a, b := twoSteps(t), twoSteps(t)
	b.Volatile = trace.Volatile{TraceID: "other", PID: 7}
	require.Empty(t, differences(t, a, b, Ignore{}))
}

func TestDifferencesNameTheStepAndTheValue(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *trace.Trace)
		want   string
	}{
		"an output": {
			func(b *trace.Trace) { b.Identity.Steps[0].Outputs["said"] = shownValue(t, "b") },
			`/steps/0/outputs/said | step one: outputs.said: "a" -> "b"`,
		},
		"an output with an odd name": {
			func(b *trace.Trace) { b.Identity.Steps[0].Outputs["a/b ~"] = shownValue(t, 2) },
			`/steps/0/outputs/a~1b ~0 | step one: outputs["a/b ~"]: 1 -> 2`,
		},
		"an output of another kind": {
			func(b *trace.Trace) { b.Identity.Steps[0].Outputs["said"] = shownValue(t, []string{"x\x1b[2J"}) },
			`/steps/0/outputs/said | step one: outputs.said: "a" -> ["x\u001b[2J"]`,
		},
		"an output that is new": {
			func(b *trace.Trace) { b.Identity.Steps[0].Outputs["more"] = shownValue(t, true) },
			`/steps/0/outputs/more | step one: outputs.more: new: true`,
		},
		"an output that is gone": {
			func(b *trace.Trace) { delete(b.Identity.Steps[0].Outputs, "said") },
			`/steps/0/outputs/said | step one: outputs.said: gone: "a"`,
		},
		"an argument": {
			func(b *trace.Trace) { b.Identity.Steps[1].Steps[0].Exec.Argv[2].Value = "cat\n" },
			`/steps/1/steps/0/exec/argv/2 | step outer.inner: exec.argv[2]: "echo" -> "cat\n"`,
		},
		"a commit": {
			func(b *trace.Trace) { b.Identity.Steps[1].Component.Digest[trace.GitCommit] = "ff" },
			`/steps/1/component/digest/gitCommit | step outer: component.digest.gitCommit: ` +
				`"` + strings.Repeat("0a", 20) + `" -> "ff"`,
		},
		"the job's definition": {
			func(b *trace.Trace) {
				b.Identity.Job.Definition = json.RawMessage(`{"steps":[{"name":"one"},{"name":"x"}]}`)
			},
			`/job/definition/steps/1/name | job: job.definition.steps[1].name: "outer" -> "x"`,
		},
		"the status": {
			func(b *trace.Trace) { b.Identity.Status = trace.Failure },
			`/status | job: status: "success" -> "failure"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := twoSteps(t)
			c.change(b)
			require.Equal(t, []string{c.want}, differences(t, twoSteps(t), b, Ignore{}))
		})
	}
}

func TestStepsThatAreNotInBothAreToldOnce(t *testing.T) {
	b := twoSteps(t)
	b.Identity.Steps = b.Identity.Steps[:1]
	lines := differences(t, twoSteps(t), b, Ignore{})
	require.Len(t, lines, 1)
	require.True(t, strings.HasPrefix(lines[0], `/steps/1 | step outer: the step: gone: {"component":`), lines[0])
	require.Contains(t, lines[0], "bytes)", "what is long is cut")
}

func TestLogsAndRuntimeCanBeLeftOut(t *testing.T) {
	b := twoSteps(t)
	b.Identity.Steps[0].Logs.Stdout = trace.Log{Bytes: 2, SHA256: "ff"}
	require.Len(t, differences(t, twoSteps(t), b, Ignore{}), 2)
	require.Empty(t, differences(t, twoSteps(t), b, Ignore{Logs: true}))
	b.Identity.Steps[1].Steps[0].Exec.Program.Digest[trace.SHA256] = "ff"
	b.Identity.Runtime.Arch = "arm64"
	require.Len(t, differences(t, twoSteps(t), b, Ignore{Logs: true}), 2)
	require.Empty(t, differences(t, twoSteps(t), b, Ignore{Logs: true, Runtime: true}))
	b.Identity.Steps[1].Component.Digest[trace.SHA256Tree] = "ff"
	b.Identity.Steps[1].Outputs = mask.Values{"logs": shownValue(t, 1)}
	require.Len(
		t,
		differences(t, twoSteps(t), b, Ignore{Logs: true, Runtime: true}),
		2,
		"what has such a name only counts",
	)
}

func TestMaskedValuesAreComparedByTheirSumsOnly(t *testing.T) {
	with := func(s *mask.Salt, text string) *trace.Trace {
		tr := twoSteps(t)
		tr.Secrets = s
		tr.Identity.Job.Vars["TOKEN"] = trace.Variable{Value: s.Text(text), Masked: true}
		return tr
	}
	s := mask.NewSalt()
	require.Empty(t, differences(t, with(s, "hunter2"), with(s, "hunter2"), Ignore{}))
	require.Equal(
		t,
		[]string{`/job/vars_used/TOKEN/value | job: job.vars_used.TOKEN.value: [MASKED] -> [MASKED] (another value)`},
		differences(t, with(s, "hunter2"), with(s, "hunter3"), Ignore{}),
	)

	c, err := Compare(with(s, "hunter2"), with(mask.NewSalt(), "hunter2"), Ignore{})
	require.NoError(t, err)
	require.True(t, c.Same())
	require.Equal(t, 1, c.Unknown)

	plain := with(s, "hunter2")
	plain.Identity.Job.Vars["TOKEN"] = trace.Variable{Value: mask.Text{Value: "hunter2"}, Masked: true}
	for _, traces := range [][2]*trace.Trace{{with(s, "hunter2"), plain}, {plain, with(s, "hunter2")}} {
		lines := differences(t, traces[0], traces[1], Ignore{})
		require.Len(t, lines, 1)
		require.NotContains(t, lines[0], "hunter2", "the other trace says that it is a secret")
	}
	gone := with(s, "hunter2")
	delete(gone.Identity.Job.Vars, "TOKEN")
	lines := differences(t, with(s, "hunter2"), gone, Ignore{})
	require.Len(t, lines, 1)
	require.NotContains(t, lines[0], s.Sum("hunter2"))
}

func TestDifferencesAreBounded(t *testing.T) {
	racefree.Only(t)
	a, b := twoSteps(t), twoSteps(t)
	for i := range maxDifferences + 5 {
		name := fmt.Sprintf("v%d", i)
		a.Identity.Outputs, b.Identity.Outputs = set(
			a.Identity.Outputs,
			name,
			shownValue(t, "x"),
		), set(
			b.Identity.Outputs,
			name,
			shownValue(t, strings.Repeat("y", 10_000)),
		)
	}
	c, err := Compare(a, b, Ignore{})
	require.NoError(t, err)
	require.Len(t, c.Differences, maxDifferences)
	require.Equal(t, 5, c.More)
	for _, d := range c.Differences {
		require.Less(t, len(d.String()), 400)
	}
}

func set(values mask.Values, name string, v mask.Value) mask.Values {
	if values == nil {
		values = mask.Values{}
	}
	values[name] = v
	return values
}

func TestTraceIsShown(t *testing.T) {
	tr := twoSteps(t)
	tr.Secrets = mask.NewSalt()
	tr.Identity.Job.Vars["TOKEN"] = trace.Variable{Value: tr.Secrets.Text("hunter2"), Masked: true}
	tr.Identity.Steps[0].Outputs["said"] = shownValue(t, "a\x1b[2J\nb")
	var b bytes.Buffer
	require.NoError(t, Show(&b, tr))
	text := b.String()
	for _, line := range []string{
		"job success in 2s\n", "source   file sha256:0a", "vars     PLAIN=p", "vars     TOKEN=[MASKED]",
		"step one success in 1s", "message  it said",
		"from     local @work/echo in step.yml", "command  bash -c echo", `outputs  said="a\u001b[2J\nb"`,
		"from     git https://h/g/p@main (" + strings.Repeat("0a", 20) + ") in steps/step.yml", "  step inner success",
	} {
		require.Contains(t, text, line)
	}
	require.False(
		t,
		slices.ContainsFunc([]byte(text), func(c byte) bool { return c < ' ' && c != '\n' || c == 0x7f }),
		"%q",
		text,
	)
	require.Error(t, Show(full{}, tr))
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, fmt.Errorf("no space left") }

// Older traces have the code 0 if no script ended; newer ones have no code then.
func TestAnExitCodeOfZeroEqualsAMissingOne(t *testing.T) {
	old, made := twoSteps(t), twoSteps(t)
	old.Identity.ExitCode, old.Identity.Steps[0].ExitCode, old.Identity.Steps[0].Exec.ExitCode = new(0), new(0), new(0)
	require.Empty(t, compared(t, old, made))
	require.Empty(t, compared(t, made, old))
	made.Identity.Steps[0].ExitCode = new(4)
	require.Equal(t, []string{"step one: exit_code: 0 -> 4"}, compared(t, old, made))
	old.Identity.Steps[0].ExitCode = nil
	require.Equal(t, []string{"step one: exit_code: new: 4"}, compared(t, old, made))
}

func compared(t *testing.T, old, made *trace.Trace) (all []string) {
	t.Helper()
	c, err := Compare(old, made, Ignore{})
	require.NoError(t, err)
	for _, d := range c.Differences {
		all = append(all, d.String())
	}
	return all
}
