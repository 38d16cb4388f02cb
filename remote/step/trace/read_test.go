package trace

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gowebpki/jcs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// sample is a trace that has something of everything.
func sample(t testing.TB) *Trace {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	secrets := &mask.Salt{Scheme: "hmac-sha256", Salt: make([]byte, 32)}
	wanted := true
	bash := &Program{Path: mask.Text{Value: "/bin/bash"}, Digest: Digest{SHA256: strings.Repeat("a", 64)}}
	empty := strings.Repeat("e", 64)
	tr := &Trace{
		Identity: Identity{
			Job: Job{
				Source: Source{
					Kind:    FromGitLabCI,
					JobName: "build",
					Digest:  Digest{SHA256: empty},
				}, Definition: json.RawMessage(`{"type":"steps"}`),
				Text: mask.Text{Value: "run: []"},
				Inputs: mask.Values{
					"n": {Value: value(t, 1.5)},
				}, Env: mask.Texts{"A": {Value: "b"}}, OSEnv: mask.Texts{"HOME": {Value: "@work/home"}},
				Vars: map[string]Variable{
					"TOKEN": {Value: secrets.Text("hidden"), Masked: true, File: true},
				}, MayFail: []string{"x"}, Dialect: "v1",
			},
			Runtime: Runtime{OS: "linux", Arch: "amd64"},
			Steps: []Step{{
				Path: "0", Name: "outer", Kind: KindSteps, Status: Success, When: "always", Truncated: true,
				Component: &Component{
					Kind: Git, Location: "https://host/a/b", Version: "v1", ResolvedRef: "refs/tags/v1", Dir: "steps",
					File:   "step.yml",
					Digest: Digest{SHA256Tree: empty, GitCommit: strings.Repeat("1", 40), GitTree: strings.Repeat("2", 40)},
				},
				Definition: json.RawMessage(`{"type":"exec"}`),
				Steps: []Step{{
					Path: "0.0", Name: "inner", Kind: KindExec, Status: Failure, ExitCode: new(137),
					Component: &Component{Kind: Inline},
					Inputs:    mask.Values{"like": {Value: value(t, map[string]any{"masked": true, "hmac": "x"})}},
					EnvSet:    mask.Texts{"S": secrets.Text("hidden")},
					Outputs: mask.Values{
						"s": secrets.Value(value(t, "hidden")),
						"o": {Value: value(t, map[string]any{"deep": []any{1, "<&>"}})},
					},
					Exec: &Exec{
						Argv: []mask.Text{
							{Value: "bash"},
							secrets.Text("hidden"),
						}, WorkDir: mask.Text{Value: WorkDir}, Program: bash, Interpreter: bash,
						NotStarted: true, ExitCode: new(137), Signal: "SIGKILL", Timeout: true,
					},
				}},
			}},
			Status: Failure, Reason: "script", ExitCode: new(137),
		},
		Volatile: Volatile{
			TraceID: "00000000-0000-4000-8000-000000000000", Started: at, Ended: at, Host: "host", PID: 1, Message: "it failed",
			Paths: map[string]string{
				WorkDir: "/w",
			}, Versions: map[string]string{empty: "Bash version 5"}, Warnings: []string{"w"},
			Steps: []StepRun{{
				Path: "0.0", Started: at, Ended: at, PID: 2, MaxRSS: 3, UserMS: 1.5, SystemMS: 2, Cache: "hit", Message: "m",
				Warnings: []string{"w"},
				Stdout:   &Range{Offset: 1, Bytes: 2, SHA256: empty}, Stderr: &Range{SHA256: empty},
			}},
		},
		Secrets: secrets,
	}
	tr.Identity.Runtime.Runner.Version, tr.Identity.Runtime.Runner.Digest = "v1", Digest{SHA256: empty}
	outer := &tr.Identity.Steps[0]
	outer.Condition.Expr, outer.Condition.Value = mask.Text{Value: "true"}, &wanted
	outer.Reference.Text, outer.Reference.Dynamic = mask.Text{Value: "host/a/b@${{ vars.REV }}"}, true
	outer.Steps[0].Logs.Stdout = Log{Bytes: 1, SHA256: empty, Truncated: true}
	outer.Steps[0].Logs.Stderr = Log{SHA256: empty}
	return tr
}

func encoded(t testing.TB, x *Trace) []byte {
	t.Helper()
	data, err := x.Encode()
	require.NoError(t, err)
	return data
}

func TestTraceIsReadAsItWasWritten(t *testing.T) {
	data := encoded(t, sample(t))
	read, err := Parse(data)
	require.NoError(t, err)
	require.Equal(t, string(data), string(encoded(t, read)))
	require.Equal(t, sample(t).Identity.Steps[0].Steps[0].Exec, read.Identity.Steps[0].Steps[0].Exec)
	like := read.Identity.Steps[0].Steps[0].Inputs["like"]
	require.False(t, like.Masked, "a value that looks like a masked one is none")
	require.Equal(t, map[string]any{"masked": true, "hmac": "x"}, like.Value.Any())
	require.True(t, read.Identity.Steps[0].Steps[0].Outputs["s"].Masked)
	require.Equal(
		t,
		read.Identity.Job.Vars["TOKEN"].Value.HMAC,
		read.Identity.Steps[0].Steps[0].Outputs["s"].HMAC,
		"the same secret has the same sum",
	)
	require.NotContains(t, string(data), "hidden")
}

func TestTraceThatWasReformattedIsTheSame(t *testing.T) {
	data := encoded(t, sample(t))
	var tree any
	require.NoError(t, json.Unmarshal(data, &tree))
	indented, err := json.MarshalIndent(tree, "", "\t")
	require.NoError(t, err)
	read, err := Parse(indented)
	require.NoError(t, err)
	require.Equal(t, string(data), string(encoded(t, read)))
}

// edited returns a trace in which old was replaced by text. If renew is set, its id matches the new identity.
func edited(t testing.TB, old, text string, renew bool) []byte {
	t.Helper()
	data := string(encoded(t, sample(t)))
	require.Contains(t, data, old)
	data = strings.Replace(data, old, text, 1)
	if renew {
		var raw map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(data), &raw))
		canonical, err := jcs.Transform(raw["identity"])
		require.NoError(t, err)
		raw["id"] = json.RawMessage(`"` + idOf(canonical) + `"`)
		renewed, err := json.Marshal(raw)
		require.NoError(t, err)
		data = string(renewed)
	}
	return []byte(data)
}

func TestEditedTraceIsRefused(t *testing.T) {
	_, err := Parse(edited(t, `"exit_code":137`, `"exit_code":0`, false))
	require.ErrorIs(t, err, ErrID)
	_, err = Parse(edited(t, `"name":"inner"`, `"name":"other"`, false))
	require.ErrorIs(t, err, ErrID)
	_, err = Parse(edited(t, `"pid":1,`, `"pid":9,`, false))
	require.NoError(t, err, "the volatile half has no sum")
}

func TestDataThatIsNotATraceIsRefused(t *testing.T) {
	salt := string(encoded(t, sample(t)))
	salt = salt[strings.Index(salt, `"salt":"`) : strings.Index(salt, `"salt":"`)+53]
	deep := strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth)
	for want, data := range map[string][]byte{
		"the text is not valid JSON":            []byte("{"),
		"the file is not a trace":               []byte("[1, 2]"),
		"the file is not a trace, which":        []byte(`{"status": "success"}`),
		`has the schema "steptrace/v3"`:         edited(t, `"schema":"steptrace/v2"`, `"schema":"steptrace/v3"`, false),
		"which steptrace/v1 does not know":      edited(t, `"schema":"steptrace/v2"`, `"schema":"steptrace/v1"`, false),
		"the trace is nested deeper than 1000":  []byte(`{"schema":"steptrace/v1","x":` + deep + `}`),
		`unknown field "more"`:                  edited(t, `"pid":1,`, `"pid":1,"more":1,`, false),
		`two values for the key "pid"`:          edited(t, `"pid":1,`, `"pid":1,"pid":1,`, false),
		`it has invalid UTF-8`:                  edited(t, `"message":"m"`, "\"message\":\"\xff\"", false),
		"unknown field \"exitcode\"":            edited(t, `"exit_code":137`, `"exit_code":137,"exitcode":1`, true),
		"not written as this version writes it": edited(t, `"status":"failure"`, `"Status":"failure"`, true),
		"a masked value must be": edited(t, `"masked":false,"value"`,
			`"masked":false,"hmac":"x","value"`, true),
		"a text is null": edited(t, `"name":"inner","outputs"`,
			`"condition":{"expr":null},"name":"inner","outputs"`, true),
		"do not use hmac-sha256 with a salt of": edited(t, salt, `"salt":"AAAA"`, false),
		"cannot unmarshal":                      edited(t, `"argv":["bash"`, `"argv":[7`, true),
	} {
		_, err := Parse(data)
		require.ErrorContains(t, err, want, want)
	}
}

func TestReadRefusesAPathThatIsNotARegularFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for _, path := range []string{dir, fifo} {
		_, err := Read(path)
		require.ErrorContains(t, err, "is not a regular file")
	}
	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	require.NoError(t, os.Truncate(large, MaxSize+1))
	_, err := Read(large)
	require.ErrorContains(t, err, "the limit is")
	good := filepath.Join(dir, "good")
	require.NoError(t, os.WriteFile(good, encoded(t, sample(t)), 0o600))
	_, err = Read(good)
	require.NoError(t, err)
}

// What is read says all that is there: written again it is the same.
func FuzzParse(f *testing.F) {
	f.Add(encoded(f, sample(f)))
	f.Add(encoded(f, &Trace{}))
	f.Add([]byte(`{"schema":"steptrace/v1","id":"","identity":{},"volatile":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := Parse(data)
		if err != nil {
			return
		}
		id := read.ID
		again, err := read.Encode()
		require.NoError(t, err)
		require.Equal(t, id, read.ID)
		_, err = Parse(again)
		require.NoError(t, err)
	})
}

// Symptom: a file of 60 MB with empty steps took 4.4 GB of memory, and one of 3 MB took 2.9 GB.
//
//stepmux:faults input | A crafted trace of a few megabytes takes all memory of the machine that reads it
func TestATraceWithTooManyValuesOrStepsIsRefusedBeforeItTakesMemory(t *testing.T) {
	racefree.Only(t)
	refused := func(data, want string, most uint64) {
		t.Helper()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse([]byte(data))
		runtime.ReadMemStats(&after)
		require.ErrorContains(t, err, want)
		require.Less(t, (after.TotalAlloc-before.TotalAlloc)>>20, most, "MiB that were allocated, not all at once")
	}
	trace := func(identity string) string {
		return `{"id":"` + idOf([]byte(identity)) + `","identity":` + identity + `,"schema":"` + Schema + `"}`
	}
	list := func(item string, n int) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }
	refused(trace(`{"steps":`+list("{}", 20<<20)+`}`), "read trace: the trace has more than 2097152 values", 70)
	refused(trace(`{"outputs":{"a":`+list("0", maxValues)+`}}`), "read trace: the trace has more than 2097152 values", 5)
	refused(trace(`{"steps":`+list("{}", maxSteps+1)+`}`), "the trace has more than 65536 steps", 100)
	refused(trace(`{"steps":[{"steps":`+list("{}", maxSteps)+`}]}`), "the trace has more than 65536 steps", 100)

	written, err := (&Trace{}).Encode()
	require.NoError(t, err)
	runs := func(n int) string {
		return strings.Replace(string(written), `"steps":null,"trace_id"`, `"steps":`+list("{}", n)+`,"trace_id"`, 1)
	}
	refused(trace(`{"STEPS":`+list("{}", maxSteps+1)+`,"steps":[]}`), "the trace has more than 65536 steps", 100)
	refused(runs(maxSteps+1), "the trace has more than 65536 steps", 100)
	again, err := Parse([]byte(runs(maxSteps)))
	require.NoError(t, err)
	require.Len(t, again.Volatile.Steps, maxSteps)

	again.Volatile.Warnings = make([]string, maxValues)
	_, err = again.Encode()
	require.EqualError(t, err, "encode trace: the trace has more than 2097152 values")
}

// Symptom: a trace that was too large could not be written, so a job with large outputs left no trace.
//
//stepmux:faults fetch | A job with many outputs leaves no trace, because the trace would be too large
//stepmux:with remote/step/trace/recording.TestOutputsOfTheJobHaveTheirPlaceBeforeThoseOfSteps
//stepmux:with remote/step/trace/recording.TestDefinitionsOfManyValuesAreCutStepByStep
func TestATraceThatIsTooLargeIsCutAndSaysSo(t *testing.T) {
	lists := mask.Values{}
	for i := range 10 {
		v, err := expr.New(slices.Repeat([]any{[]any{}}, 50))
		require.NoError(t, err)
		lists[fmt.Sprint(i)] = mask.Value{Value: v}
	}
	step := func(name string) Step {
		return Step{Name: name, Status: Success, Outputs: lists, Exec: &Exec{Argv: []mask.Text{{Value: "a"}}}}
	}
	truncated := func(t *Trace) (names []string) {
		for _, s := range stepsBelow(t.Identity.Steps, nil) {
			if s.Truncated {
				names = append(names, s.Name)
			}
		}
		return names
	}
	encode := func(x *Trace) *Trace {
		data, err := x.encodeWithin(2500, MaxSize)
		require.NoError(t, err)
		read, err := Parse(data)
		require.NoError(t, err)
		return read
	}
	const cut = "steps marked as truncated lack large data: the trace has more than 2500 values"

	outer := step("outer")
	outer.Steps = []Step{step("inner")}
	read := encode(&Trace{Identity: Identity{Steps: []Step{{Name: "first", Outputs: lists}, outer, step("last")}}})
	require.Equal(t, []string{"inner", "last"}, truncated(read))
	require.Equal(t, []string{cut}, read.Volatile.Warnings)
	require.Len(t, read.Identity.Steps[0].Outputs, len(lists))
	require.Empty(t, read.Identity.Steps[2].Outputs)
	require.Empty(t, read.Identity.Steps[2].Exec.Argv)

	read = encode(&Trace{Identity: Identity{Outputs: lists, Steps: []Step{step("a"), step("b"), step("c"), step("d")}}})
	require.Equal(t, []string{"a", "b", "c", "d"}, truncated(read))
	require.Len(t, read.Identity.Outputs, len(lists))

	read = encode(&Trace{Identity: Identity{Outputs: lists, Exports: lists, Steps: []Step{}, Job: Job{Inputs: lists}}})
	require.Empty(t, read.Identity.Outputs)
	require.Len(t, read.Identity.Job.Inputs, len(lists))

	long := &Trace{Identity: Identity{Steps: []Step{{Inputs: lists}, {Inputs: lists}}}}
	data, err := long.encodeWithin(maxValues, 3000)
	require.NoError(t, err)
	require.Less(t, len(data), 3000)
	require.Equal(t, []string{"steps marked as truncated lack large data: the trace has 3706 bytes, the limit is 3000"},
		long.Volatile.Warnings)
	require.Equal(t, "the outputs and the exports of the job are left out: the trace has more than 2500 values",
		read.Volatile.Warnings[len(read.Volatile.Warnings)-1])
}
