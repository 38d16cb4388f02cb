package recording

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// testCase is a conformance case: a job, its environment, and the expected result.
type testCase struct {
	Name          string
	Kind          string
	Dialect       string
	StepsYAML     string `json:"steps_yaml"`
	GitLabCI      string `json:"gitlab_ci_yaml"`
	Calls         string
	Cmd           string
	RunRequest    json.RawMessage `json:"run_request"`
	DryRun        bool            `json:"dry_run"`
	Files         map[string]json.RawMessage
	Env           map[string]string
	RunEnv        map[string]string `json:"run_env"`
	Vars          json.RawMessage
	Variables     []engine.Variable
	Job           map[string]any
	GitRemotes    map[string]caseRemote `json:"git_remotes"`
	GitHTTP       map[string]caseRemote `json:"git_http"`
	ZipFiles      map[string]caseFiles  `json:"zip_files"`
	ZipEntry      string                `json:"zip_entry"`
	OCI           map[string]map[string]caseFiles
	HomeGitconfig string `json:"home_gitconfig"`
	Runs          int
	ParallelJobs  int `json:"parallel_jobs"`
	Fault         string
	Expect        expectation
	Limits        map[string]float64
	neighbour     bool
	actions       bool // of GitHub Actions
	unhandledKey  string
}

type expectation struct {
	Status         string
	ExitCode       *int              `json:"exit_code"`
	LogContains    []string          `json:"log_contains"`
	LogNotContains []string          `json:"log_not_contains"`
	LogOrder       []string          `json:"log_order"`
	LogCount       map[string]int    `json:"log_count"`
	ErrorContains  []string          `json:"error_contains"`
	Exports        map[string]string `json:"exports"`
	Outputs        map[string]map[string]any
	JobOutputs     map[string]any `json:"job_outputs"`
	OutputLen      map[string]int `json:"output_len"`
	Steps          map[string]struct {
		Status   string
		ExitCode *int `json:"exit_code"`
		Outputs  map[string]any
	}
	Trace            map[string]any
	TracePresent     []string `json:"trace_present"`
	Property         string
	TraceNotContains []string `json:"trace_not_contains"`
	Compiled         map[string]any
	Stdout           *string
	Stderr           []string   `json:"stderr_contains"`
	Job              string     `json:"job_status"`
	Seconds          float64    `json:"max_seconds"`
	LogContainsRun   [][]string `json:"log_contains_run"`
	CacheEntries     int        `json:"cache_entries"`
	Fetches          int
	AbsentFiles      []string `json:"absent_files"`
}

// elsewhere names the cases that need parts which the engine does not have.
func (c *testCase) elsewhere() string {
	switch {
	case c.actions:
		return "GitHub Actions"
	case c.StepsYAML == "" && c.GitLabCI != "":
		return "the reader of .gitlab-ci.yml"
	case c.Kind == "replay" || c.Kind == "provenance":
		return "the programs that read traces"
	case c.Kind == "cli" || c.Cmd != "" && c.Kind != "trace":
		return "the command line"
	case !slices.Contains([]string{"", "mask", "cache", "fetch", "trace"}, c.Kind):
		return c.Kind + " is not run by the engine"
	case c.Calls != "" && c.Calls != "FollowIO(id,0,0)":
		return "the service"
	case c.RunRequest != nil || c.Dialect == "service" && c.unhandledKey != "":
		return "the service"
	}
	return ""
}

// notCompared are the cases of which a part is left out, and which.
var notCompared = map[string]string{
	"245-doc-native-type-passthrough": "the inputs of a step, which are not in its result",
}

// decided has the cases that contradict a decision, with the reason.
var decided = map[string]string{
	"env_invocation_not_referenced_by_own_inputs": "the published example uses env of a step in its own inputs: env " +
		"comes first, then inputs",
	"not_found_message":                            "the wording is that of another program; ours names the missing key",
	"schema_name_missing":                          "a step of a job without a name gets one, step_1",
	"log_level_default_info":                       byManagersService,
	"log_level_from_job_variable_case_insensitive": byManagersService,
	"log_level_invalid_rejected":                   byManagersService,
}

const byManagersService = "the service that GitLab Runner's manager calls sets the variable; its test runs the case"

func TestConformance(t *testing.T) {
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	var passed, skipped []string
	for i, c := range readCases(t, root) {
		if why := c.elsewhere(); why != "" {
			skipped = append(skipped, c.Name+": "+why)
			continue
		}
		why, isDecided := decided[c.Name]
		if isDecided {
			skipped = append(skipped, c.Name+": decided otherwise: "+why)
		}
		t.Run(c.Name, func(t *testing.T) {
			if i%3 > 0 && c.ParallelJobs < 2 { // most have one job, which is much alike for all of them
				racefree.Only(t)
			}
			require.Empty(t, c.unhandledKey, "the case expects something that is not compared")
			wrong := c.run(t)
			if isDecided {
				require.NotEmpty(t, wrong, "the case passes, though it was decided otherwise: %s", why)
				return
			}
			require.Empty(t, wrong)
			name := c.Name
			if left := notCompared[name]; left != "" {
				name += " (not compared: " + left + ")"
			}
			passed = append(passed, name)
		})
	}
	require.NotEmpty(t, passed)
	for name := range decided {
		require.Contains(t, strings.Join(skipped, "\n"), name+": decided otherwise", "there is no such case")
	}
	t.Logf("%d cases pass:\n%s", len(passed), strings.Join(passed, "\n"))
	t.Logf("%d cases were not run:\n%s", len(skipped), strings.Join(skipped, "\n"))
}

func readCases(t *testing.T, root string) []*testCase {
	t.Helper()
	var all []*testCase
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == "actions_expressions": // rows of another expression language
			return filepath.SkipDir
		case filepath.Ext(path) != ".json":
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		c := &testCase{neighbour: strings.Contains(path, "/neighbour/"), actions: strings.Contains(path, "/actions/")}
		if err := json.Unmarshal(data, c); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		var raw struct{ Expect map[string]any }
		if err := json.Unmarshal(data, &raw); err != nil {
			return err
		}
		for key := range raw.Expect {
			if !slices.Contains(handledKeys, key) {
				c.unhandledKey = key
			}
		}
		all = append(all, c)
		return nil
	})
	require.NoError(t, err)
	return all
}

var handledKeys = strings.Fields(
	`status exit_code log_contains log_not_contains log_order log_count error_contains exports outputs
	job_outputs output_len steps compiled trace trace_present trace_not_contains property stdout stderr_contains
    job_status max_seconds note decision conflict open peer
	log_contains_run cache_entries fetches absent_files no_temp_left`,
)

// place writes the files of the case and returns the directory of the project.
func (c *testCase) place(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "project")
	require.NoError(t, os.Mkdir(root, 0o755))
	for name, raw := range c.Files {
		var file struct{ Content, Mode string }
		if json.Unmarshal(raw, &file.Content) != nil {
			require.NoError(t, json.Unmarshal(raw, &file))
		}
		var mode uint32 = 0o644
		if file.Mode != "" {
			_, err := fmt.Sscanf(file.Mode, "%o", &mode)
			require.NoError(t, err)
		}
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(c.fill(file.Content, root)), fs.FileMode(mode)))
	}
	return root
}

func (c *testCase) fill(text, root string) string {
	return strings.NewReplacer("@ROOT@", root, "@PATH@", os.Getenv("PATH")).Replace(text)
}

// config is what the case runs with. In the engine's cases env is what the runner is started with, and
// known as variables too; in the neighbour's it comes with the request.
func (c *testCase) config(t *testing.T, def *pb.Definition, root string) engine.Config {
	t.Helper()
	cfg := engine.Config{
		Definition: def, RunnerEnv: []string{"PATH=" + os.Getenv("PATH")}, Env: c.RunEnv, Vars: c.Variables,
		Secrets: &mask.Set{},
	}
	if c.neighbour {
		cfg.Env = c.Env
		return cfg
	}
	for name, value := range c.Env {
		cfg.RunnerEnv = append(cfg.RunnerEnv, name+"="+c.fill(value, root))
		cfg.Vars = append(cfg.Vars, engine.Variable{Key: name, Value: value})
	}
	var vars map[string]string
	var list []engine.Variable
	if json.Unmarshal(c.Vars, &vars) == nil {
		for name, value := range vars {
			list = append(list, engine.Variable{Key: name, Value: value})
		}
	} else if c.Vars != nil {
		require.NoError(t, json.Unmarshal(c.Vars, &list))
	}
	cfg.Vars = append(cfg.Vars, list...)
	if id, ok := c.Job["id"]; ok {
		cfg.Vars = append(cfg.Vars, engine.Variable{Key: "CI_JOB_ID", Value: fmt.Sprint(id)})
	}
	if project, ok := c.Job["project"].(map[string]any); ok {
		cfg.Vars = append(cfg.Vars, engine.Variable{Key: "CI_PROJECT_ID", Value: fmt.Sprint(project["id"])},
			engine.Variable{Key: "CI_PROJECT_PATH", Value: fmt.Sprint(project["full_path"])})
	}
	if seconds, ok := c.Limits["timeout_seconds"]; ok {
		cfg.Timeout = time.Duration(seconds * float64(time.Second))
	}
	return cfg
}

// run runs the case, as often as it says, and returns the differences from the expectation.
func (c *testCase) run(t *testing.T) (wrong []string) {
	t.Helper()
	root := c.place(t)
	w := c.world(t, root)
	runs := max(c.Runs, 1)
	if c.Expect.Property != "" {
		runs = 2
	}
	for i := range runs {
		if i == 1 {
			for _, push := range w.push {
				push()
			}
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		for range max(c.ParallelJobs, 1) {
			wg.Go(func() {
				found := c.runOnce(t, root, w, i)
				mu.Lock()
				defer mu.Unlock()
				wrong = append(wrong, found...)
			})
		}
		wg.Wait()
	}
	return append(wrong, w.check(t, root)...)
}

// runOnce runs the case for the time i.
func (c *testCase) runOnce(t *testing.T, root string, w *caseWorld, i int) (wrong []string) {
	text := strings.NewReplacer(w.fill...).Replace(c.fill(c.StepsYAML, root))
	def, err := lang.Parse("steps", []byte(text))
	if err != nil {
		return c.check(&caseResult{status: "invalid", message: err.Error()})
	}
	if c.DryRun {
		return c.checkCompiled(t, def)
	}
	log, stdout, stderr := &remotetest.Buffer{}, &remotetest.Buffer{}, &remotetest.Buffer{}
	cfg := c.config(t, def, root)
	if w.store != nil {
		cfg.Fetcher = w.store
	}
	cfg.Observe = func(r engine.StepResult) {
		if r.Status == engine.Running && r.Kind == engine.Command {
			fmt.Fprintf(log, "Running step %q\n", r.Name)
		}
	}
	rec := New(cfg, traced())
	cfg.Events = rec
	started := time.Now()
	res := engine.New(cfg).Run(t.Context(), engine.Place{
		WorkDir: root, ScriptDir: t.TempDir(),
		Stdout: rec.Tap(0, io.MultiWriter(log, stdout)), Stderr: rec.Tap(1, io.MultiWriter(log, stderr)),
	})
	made := rec.Trace(res, started, time.Now())
	got := &caseResult{
		status: res.Status.String(), message: res.Message, log: log.String(), result: res,
		stdout: stdout.String(), stderr: stderr.String(), seconds: time.Since(started).Seconds(),
	}
	if res.Invalid {
		got.status = "invalid"
	}
	wrong = append(wrong, c.checkTrace(t, made)...)
	if i < len(c.Expect.LogContainsRun) {
		for _, text := range c.Expect.LogContainsRun[i] {
			if !strings.Contains(got.log, text) {
				wrong = append(wrong, fmt.Sprintf("the log of run %d, %q, does not contain %q", i, got.log, text))
			}
		}
	}
	return append(append(wrong, c.check(got)...), c.checkCompiled(t, def)...)
}

type caseResult struct {
	status, message string
	log             string
	stdout, stderr  string
	seconds         float64
	result          engine.Result
}

func (c *testCase) check(got *caseResult) (wrong []string) {
	e := c.Expect
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if !statusIs(e.Status, got.status) || e.Job == "failed" && got.status != "failure" {
		complain("status is %s, want %s%s: %s\n%s", got.status, e.Status, e.Job, got.message, got.log)
	}
	for _, text := range e.ErrorContains {
		if !strings.Contains(got.message, text) {
			complain("message %q does not contain %q", got.message, text)
		}
	}
	if e.ExitCode != nil && *e.ExitCode != got.result.ExitCode {
		complain("exit code is %d, want %d", got.result.ExitCode, *e.ExitCode)
	}
	if e.Seconds > 0 && got.seconds > e.Seconds {
		complain("it took %v s", got.seconds)
	}
	if e.Stdout != nil && *e.Stdout != got.stdout {
		complain("stdout is %q, want %q", got.stdout, *e.Stdout)
	}
	for _, text := range e.Stderr {
		if !strings.Contains(got.stderr, text) {
			complain("stderr %q does not contain %q", got.stderr, text)
		}
	}
	return append(append(wrong, e.checkLog(got.log)...), e.checkResult(got.result)...)
}

// statusIs reports whether a case that wants a status gets it. What is found to be wrong before the first
// step runs is a failure too.
func statusIs(want, got string) bool {
	switch want {
	case "":
		return true
	case "rejected":
		return got == "invalid"
	case "failure":
		return got == "failure" || got == "invalid"
	default:
		return got == want
	}
}

func (e *expectation) checkLog(log string) (wrong []string) {
	for _, text := range e.LogContains {
		if !strings.Contains(log, text) {
			wrong = append(wrong, fmt.Sprintf("log %q does not contain %q", log, text))
		}
	}
	for _, text := range e.LogNotContains {
		if strings.Contains(log, text) {
			wrong = append(wrong, fmt.Sprintf("log %q contains %q", log, text))
		}
	}
	rest := log
	for _, text := range e.LogOrder {
		_, after, found := strings.Cut(rest, text)
		if !found {
			wrong = append(wrong, fmt.Sprintf("log %q has no %q in its place", log, text))
		}
		rest = after
	}
	for text, n := range e.LogCount {
		if strings.Count(log, text) != n {
			wrong = append(wrong, fmt.Sprintf("log %q has not %d times %q", log, n, text))
		}
	}
	return wrong
}

func (e *expectation) checkResult(res engine.Result) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	byName := map[string]engine.StepResult{}
	for _, s := range res.Steps {
		byName[s.Name] = s
	}
	for name, want := range e.Steps {
		s := byName[name]
		if want.Status != "" && want.Status != s.Status.String() {
			complain("step %s has status %v, want %s", name, s.Status, want.Status)
		}
		if want.ExitCode != nil && *want.ExitCode != s.ExitCode {
			complain("step %s has exit code %d, want %d", name, s.ExitCode, *want.ExitCode)
		}
		if !includes(anyOf(s.Outputs), want.Outputs) {
			complain("step %s has outputs %v, want %v", name, anyOf(s.Outputs), want.Outputs)
		}
	}
	for name, want := range e.Outputs {
		if !includes(anyOf(byName[name].Outputs), want) {
			complain("step %s has outputs %v, want %v", name, anyOf(byName[name].Outputs), want)
		}
	}
	for _, text := range e.TraceNotContains {
		if told := res.Message + tell(res.Steps); strings.Contains(told, text) {
			complain("the result %s contains %q", told, text)
		}
	}
	if e.JobOutputs != nil && !reflect.DeepEqual(e.JobOutputs, anyOf(res.Outputs)) {
		complain("the job has outputs %v, want %v", anyOf(res.Outputs), e.JobOutputs)
	}
	for name, want := range e.Exports {
		if got, ok := res.Exports[name]; !ok || got.Text() != want {
			complain("export %s is %v, want %s", name, got, want)
		}
	}
	for name, want := range e.OutputLen {
		step, output, _ := strings.Cut(name, ".")
		if got := len(byName[step].Outputs[output].Text()); got != want {
			complain("output %s has %d bytes, want %d", name, got, want)
		}
	}
	return wrong
}

// tell is all that results say of steps.
func tell(results []engine.StepResult) (text string) {
	for _, r := range results {
		text += fmt.Sprintln(r.Message, r.Outputs, r.Exports) + tell(r.Steps)
	}
	return text
}

// includes reports whether all of want is in got.
func includes(got, want map[string]any) bool {
	for name, v := range want {
		if !reflect.DeepEqual(v, got[name]) {
			return false
		}
	}
	return true
}

func anyOf(values map[string]expr.Value) map[string]any {
	all := make(map[string]any, len(values))
	for name, v := range values {
		all[name] = v.Any()
	}
	return all
}

// called returns the definition that the first step of def calls.
func (c *testCase) called(t *testing.T, def *pb.Definition) *pb.Definition {
	t.Helper()
	ref := def.GetSteps()[0].GetReference()
	name := filepath.Join(ref.GetPath(), ref.GetFile())
	var text string
	require.NoError(t, json.Unmarshal(c.Files[name], &text))
	called, err := lang.ParseStep(name, []byte(text))
	require.NoError(t, err)
	return called
}

// checkCompiled compares the definition with the expectations, such as steps[0].name.
func (c *testCase) checkCompiled(t *testing.T, def *pb.Definition) (wrong []string) {
	for _, path := range slices.Sorted(maps.Keys(c.Expect.Compiled)) {
		var i int
		var field string
		_, err := fmt.Sscanf(path, "steps[%d].%s", &i, &field)
		if err != nil {
			return append(wrong, "not compared: "+path)
		}
		if i >= len(def.GetSteps()) {
			def = c.called(t, def)
		}
		s := def.GetSteps()[i]
		inputs := map[string]any{}
		for name, v := range s.GetInputs() {
			inputs[name] = v.AsInterface()
		}
		got := map[string]any{
			"name": s.GetName(), "step.protocol": s.GetReference().GetProtocol().String(), "inputs": inputs,
		}[field]
		if want := c.Expect.Compiled[path]; !reflect.DeepEqual(want, got) {
			wrong = append(wrong, fmt.Sprintf("%s is %v, want %v", path, got, want))
		}
	}
	return wrong
}
