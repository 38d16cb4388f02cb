package gitlabdoor

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// base is a job with a script.
const base = `{
	"id": 7, "token": "job-token-7",
	"job_info": {"name": "build: [a, b]", "stage": "build", "pipeline_id": 5, "project_id": 3,
		"project_full_path": "group/app", "project_name": "app"},
	"git_info": {"repo_url": "https://gitlab-ci-token:job-token-7@gitlab.example.com/group/app.git",
		"sha": "1234567812345678123456781234567812345678", "depth": 20,
		"refspecs": ["+refs/pipelines/5:refs/pipelines/5", "+refs/heads/main:refs/remotes/origin/main"]},
	"runner_info": {"timeout": 3600},
	"variables": [
		{"key": "CI_JOB_NAME", "value": "build: [a, b]"}, {"key": "CI_JOB_TOKEN", "value": "job-token-7", "masked": true},
		{"key": "A", "value": "a"}
	],
	"steps": [{"name": "script", "script": ["echo on"], "when": "on_success"}]
}`

// fromLab is where the jobs come from.
var fromLab = origin{Name: "gl", URL: "https://gitlab.example.com", Marks: "t0ken"}

// jobOf returns the base with other fields.
func jobOf(t *testing.T, change string) *payload {
	t.Helper()
	all, other := map[string]any{}, map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(base), &all))
	require.NoError(t, json.Unmarshal([]byte(change), &other))
	if vars, is := other["variables"].([]any); is {
		other["variables"] = append(all["variables"].([]any), vars...)
	}
	maps.Copy(all, other)
	text, err := json.Marshal(all)
	require.NoError(t, err)
	p := &payload{}
	require.NoError(t, json.Unmarshal(text, p))
	return p
}

// made returns the request for a job, its job as the manager reads it, and the text.
func made(t *testing.T, change string) (req *pb.SubmitPipelineRequest, job map[string]any, read *standalone.Job) {
	t.Helper()
	req, _, err := jobOf(t, change).pipeline(fromLab)
	require.NoError(t, err)
	var text map[string]any
	require.NoError(t, json.Unmarshal(req.Source.Text, &text))
	return req, text[jobName].(map[string]any), readAs(t, req)
}

// readAs returns the job of a request as the manager reads it.
func readAs(t *testing.T, req *pb.SubmitPipelineRequest) *standalone.Job {
	t.Helper()
	src := standalone.Source{
		Name: "x", Text: req.Source.Text, Format: standalone.GitLabCI, JobName: jobName, InContainer: req.InImage,
		Elsewhere: true, WorkDir: t.TempDir(),
	}
	for _, v := range req.Options.Variables {
		src.Vars = append(src.Vars, engine.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked})
	}
	read, err := standalone.Read(src)
	require.NoError(t, err, "%s", req.Source.Text)
	return read
}

func TestAJobBecomesAPipelineOfOneJob(t *testing.T) {
	t.Parallel()
	req, job, read := made(t, `{}`)
	require.Equal(t, "gl/group/app#5/build: [a, b]", req.Source.Name)
	require.Equal(t, "gl/group/app", req.Repository)
	require.EqualValues(t, 3600, req.Options.Timeout.Seconds)
	require.Equal(t, "build", job["stage"])
	require.False(t, req.InImage)
	require.Equal(t, "build: [a, b]", read.Env["CI_JOB_NAME"])
	require.Equal(t, []any{map[string]any{
		"name": "get_sources", "step": "builtin://git/clone", "when": "on_success", "inputs": map[string]any{
			"url": "https://gitlab.example.com/group/app.git", "revision": "1234567812345678123456781234567812345678",
			"depth": 20.0, "token": "${{ vars.CI_JOB_TOKEN }}",
			"refspecs": []any{"+refs/pipelines/5:refs/pipelines/5", "+refs/heads/main:refs/remotes/origin/main"},
		},
	}}, job["setup"])
	require.NotContains(t, string(req.Source.Text), "job-token-7", "secrets are variables")
}

// The values of variables are those that GitLab gives: $ is replaced once, unless the variable is raw.
func TestVariablesOfAJobHaveTheValuesOfGitLab(t *testing.T) {
	t.Parallel()
	_, _, read := made(t, `{"variables": [
		{"key": "TWO", "value": "${A}b$NOPE"}, {"key": "RAW", "value": "$A", "raw": true}, {"key": "A", "value": "new"},
		{"key": "PATH_IN", "value": "$CI_PROJECT_DIR/.go"}, {"key": "not-a-name", "value": "x"},
		{"key": "KEY", "value": "text of $A", "file": true}, {"key": "SECRET", "value": "s3cret-$A", "masked": true},
		{"key": "OF_SECRET", "value": "[$SECRET]"}, {"key": "EXPR", "value": "${{ x }} $[[ y ]]", "raw": true},
		{"key": "NUL", "value": "a\u0000b"}
	]}`)
	require.Equal(t, "newb$NOPE", read.Env["TWO"])
	require.Equal(t, "$A", read.Env["RAW"])
	require.Equal(t, "${{ x }} $[[ y ]]", read.Env["EXPR"])
	require.Equal(t, "[s3cret-new]", read.Env["OF_SECRET"])
	require.Equal(t, "ab", read.Env["NUL"])
	require.Equal(t, "yes", read.Env["CI_SERVER"])
	require.NotContains(t, read.Env, "KEY", "the script has its path")
	require.NotContains(t, read.Env, "not-a-name")
	files := map[string]string{}
	for _, v := range read.Vars {
		if v.File {
			files[v.Key] = v.Value
		}
		if v.Key == "SECRET" {
			require.True(t, v.Masked)
		}
	}
	require.Equal(t, map[string]string{"KEY": "text of new"}, files)
}

func TestPartsOfAJobBecomeItsSteps(t *testing.T) {
	t.Parallel()
	_, job, _ := made(t, `{
		"hooks": [{"name": "pre_get_sources_script", "script": ["echo ${{ before }}"]}],
		"dependencies": [{"id": 6, "token": "token-6", "name": "x", "artifacts_file": {"filename": "a.zip", "size": 3}},
			{"id": 5, "token": "token-5", "name": "none"}],
		"steps": [{"name": "script", "script": ["make $A"]}, {"name": "after_script", "script": ["clean"], "when": "always"},
			{"name": "release", "script": ["release-cli"], "when": "on_success"}],
		"artifacts": [{"name": "$CI_JOB_NAME", "paths": ["$CI_PROJECT_DIR/out", "x-$A"], "when": "always",
			"artifact_type": "archive", "artifact_format": "zip", "expire_in": "1 week", "untracked": true},
			{"paths": ["r.xml"], "artifact_type": "junit", "artifact_format": "gzip", "when": "on_failure"}],
		"cache": [{"key": "k-$A", "paths": ["c/"], "policy": "pull", "when": "on_success", "fallback_keys": ["f"]}]
	}`)
	var steps []string
	for _, list := range []string{"setup", "teardown"} {
		for _, s := range job[list].([]any) {
			s := s.(map[string]any)
			steps = append(steps, s["name"].(string)+" "+s["when"].(string))
		}
	}
	require.Equal(t, []string{
		"job_pre_get_sources_script on_success", "get_sources on_success", "artifacts_of_6 on_success",
		"job_release on_success", "upload_1 always", "upload_2 on_failure",
	}, steps)
	upload := job["teardown"].([]any)[1].(map[string]any)["inputs"].(map[string]any)
	require.Equal(t, []any{"./out", "x-a"}, upload["paths"])
	require.Equal(t, "build: [a, b]", upload["name"])
	require.Equal(t, []any{map[string]any{
		"key": "k-$A", "paths": []any{"c/"}, "policy": "pull", "when": "on_success", "untracked": false,
		"fallback_keys": []any{"f"},
	}}, job["cache"])
	require.Equal(t, []any{"make $A"}, job["script"])
}

func TestAJobWithStepsRunsThem(t *testing.T) {
	t.Parallel()
	_, job, read := made(t, `{"steps": [], "run": "[{\"name\": \"hi\", \"script\": \"echo ${{ job.name }}\"}]"}`)
	require.Len(t, job["run"], 1)
	require.NotNil(t, read)
}

func TestTheImageOfAJobIsItsContainer(t *testing.T) {
	t.Parallel()
	req, job, _ := made(t, `{"image": {"name": "alpine:$A", "entrypoint": [""]}, "services": [{"name": "redis:7",
		"alias": "db", "variables": [{"key": "X", "value": "y"}]}]}`)
	require.True(t, req.InImage)
	require.Equal(t, map[string]any{"name": "alpine:$A", "entrypoint": []any{""}}, job["image"])
	require.Equal(t, []any{map[string]any{
		"name": "redis:7", "alias": "db", "variables": map[string]any{"X": "y"},
	}}, job["services"])
}

// A job that cannot run fails with the reason before anything runs.
func TestJobsThatCannotRunSayWhy(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		`{"steps": []}`:                                                           "the job has no script",
		`{"secrets": {"DB": {"vault": {}}}}`:                                      "secrets of a vault",
		`{"run": "[]"}`:                                                           "both run and scripts",
		`{"run": "{", "steps": []}`:                                               "no list in JSON",
		`{"git_info": {"repo_url": "", "sha": "x"}}`:                              "no URL of the repository",
		`{"variables": [{"key": "GIT_STRATEGY", "value": "magic"}]}`:              "GIT_STRATEGY",
		`{"variables": [{"key": "GIT_DEPTH", "value": "-1"}]}`:                    "GIT_DEPTH",
		`{"variables": [{"key": "GIT_SUBMODULE_STRATEGY", "value": "some"}]}`:     "GIT_SUBMODULE_STRATEGY",
		`{"variables": [{"key": "GIT_CLONE_PATH", "value": "$CI_BUILDS_DIR/x"}]}`: "GIT_CLONE_PATH",
	} {
		_, _, err := jobOf(t, change).pipeline(fromLab)
		require.ErrorContains(t, err, want, "%s", change)
	}
}

// Values of a server with megabytes of references to each other stay bounded.
func TestExpansionIsBounded(t *testing.T) {
	t.Parallel()
	p := &payload{Variables: []variable{{Key: "BIG", Value: string(make([]rune, 1000)) + "x"}}}
	vars := p.variables(runnerFacts{})
	vars.list[vars.byID["BIG"]].Value = string(make([]byte, maxExpanded/2))
	require.LessOrEqual(t, len(vars.expand("$BIG$BIG$BIG$BIG")), maxExpanded)
}

// Each kind of the corpus becomes a pipeline that the manager can read, or is refused before anything runs. That they
// end as they should is seen on a VM: instance/manager.TestKindsOfJobsOfGitLabEndAsTheirPageSays.
func TestEachKindOfJobBecomesAPipeline(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"GIT": "https://gitlab.example.com", "SHA": strings.Repeat("a", 40), "OLD": strings.Repeat("b", 40),
	}
	kinds := gitlabtest.Kinds(t, values)
	require.GreaterOrEqual(t, len(kinds), 40)
	for _, kind := range kinds {
		kind.Job["id"], kind.Job["token"] = 7, "job-token-7"
		text, err := json.Marshal(kind.Job)
		require.NoError(t, err)
		p := &payload{}
		require.NoError(t, json.Unmarshal(text, p), kind.Name)
		req, look, err := p.pipeline(fromLab)
		if kind.Want.Refused != "" {
			require.ErrorContains(t, err, kind.Want.Refused, kind.Name)
			continue
		}
		require.NoError(t, err, kind.Name)
		read := readAs(t, req)
		require.Len(t, read.Definition.GetSteps(), len(look.steps), "%s: each step has its section", kind.Name)
	}
}
