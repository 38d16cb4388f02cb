package standalone

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// commitVars are the predefined variables of a commit.
var commitVars = []gitlabci.Variable{
	{Name: "CI_COMMIT_SHA", Value: "0123abcd"},
	{Name: "CI_COMMIT_BRANCH", Value: "topic"},
	{Name: "CI_COMMIT_REF_NAME", Value: "topic"},
	{Name: "CI_COMMIT_AUTHOR", Value: "Ann <ann@x.test>"},
	{Name: "CI_COMMIT_MESSAGE", Value: "Title\n\nText"},
	{Name: "CI_COMMIT_TITLE", Value: "Title"},
	{Name: "CI_COMMIT_TIMESTAMP", Value: "2026-01-02T03:04:05Z"},
	{Name: "CI_DEFAULT_BRANCH", Value: "trunk"},
}

// described returns the variables that describe the event of a workflow, and its payload.
func described(t *testing.T, src Source) (vars map[string]string, payload map[string]any) {
	t.Helper()
	src.Name, src.Format, src.WorkDir = "w.yml", GitHub, filepath.Join(t.TempDir(), "my projéct")
	w, err := ReadWorkflow(src)
	require.NoError(t, err)
	vars = map[string]string{}
	for _, v := range w.src.Vars {
		require.NotContains(t, vars, v.Key, "a variable is set twice")
		vars[v.Key] = v.Value
	}
	require.NoError(t, json.Unmarshal([]byte(vars["GITHUB_EVENT"]), &payload))
	return vars, payload
}

const jobs = "\njobs: {a: {steps: [{run: x}]}}\n"

func TestEventOfAWorkflowIsMadeFromTheCommit(t *testing.T) {
	vars, push := described(t, Source{Text: []byte("on: [pull_request, push]" + jobs), Predefined: commitVars})
	require.Equal(t, "push", vars["GITHUB_EVENT_NAME"])
	require.NotEmpty(t, vars["GITHUB_RUN_ID"])
	require.Equal(t, "refs/heads/topic", push["ref"])
	require.Equal(t, "0123abcd", push["after"])
	require.Equal(t, "local/my-proj-ct", vars["GITHUB_REPOSITORY"])
	require.NotEmpty(t, vars["GITHUB_ACTOR"])
	require.Equal(t, vars["GITHUB_ACTOR"], vars["GITHUB_TRIGGERING_ACTOR"])
	require.Equal(t, map[string]any{
		"full_name": "local/my-proj-ct", "name": "my-proj-ct", "owner": map[string]any{"login": "local", "name": "local"},
		"default_branch": "trunk",
	}, push["repository"])
	require.Equal(t, "trunk", under(push, "repository")["default_branch"])
	require.Equal(t, "Title\n\nText", under(push, "head_commit")["message"])
	require.Equal(t, map[string]any{"name": "Ann", "email": "ann@x.test"}, under(under(push, "head_commit"), "author"))

	for _, event := range []string{"on: {pull_request: {branches: [main]}}", "on: pull_request"} {
		vars, pull := described(t, Source{Text: []byte(event + jobs), Predefined: commitVars})
		require.Equal(t, []string{"pull_request", "topic", "trunk", "refs/pull/1/merge", "1/merge"}, []string{
			vars["GITHUB_EVENT_NAME"], vars["GITHUB_HEAD_REF"], vars["GITHUB_BASE_REF"], vars["GITHUB_REF"],
			vars["GITHUB_REF_NAME"],
		})
		request := under(pull, "pull_request")
		require.Equal(t, "Title", request["title"])
		require.Equal(t, map[string]any{"ref": "topic", "sha": "0123abcd"}, request["head"])
		require.Equal(t, false, request["draft"])
	}

	text := "on: {workflow_dispatch: {inputs: {n: {type: number, default: 2}}}}" + jobs
	project := []gitlabci.Variable{{Name: "CI_PROJECT_PATH", Value: "o/r"}}
	vars, manual := described(t, Source{
		Text: []byte(text), Inputs: map[string]string{"n": "3"}, Predefined: project,
	})
	require.Equal(t, "o/r", vars["GITHUB_REPOSITORY"])
	require.Equal(t, "r", under(manual, "repository")["name"])
	for _, name := range []string{"GITHUB_REPOSITORY", "CI_PROJECT_PATH"} {
		_, named := described(t, Source{
			Text: []byte(text), Vars: []engine.Variable{{Key: name, Value: "a/b"}}, Predefined: project,
		})
		require.Equal(t, "a/b", under(named, "repository")["full_name"])
	}
	require.Equal(t, "workflow_dispatch", vars["GITHUB_EVENT_NAME"])
	require.Equal(t, map[string]any{"n": "3"}, manual["inputs"])
}

// Symptom: a job whose needs had large outputs did not run here, and on VMs the error spoke of scripts.
func TestOutputsOfNeedsMayBeLong(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		w, err := ReadWorkflow(Source{
			Name: "w.yml", Format: GitHub, Elsewhere: elsewhere,
			Text: []byte("on: push\njobs: {a: {outputs: {o: x}, steps: [{run: x}]}, b: {needs: a, steps: [{run: x}]}}"),
		})
		require.NoError(t, err)
		v := w.Values(map[string]action.Outcome{
			"a": {Result: action.Succeeded, Outputs: map[string]string{"o": strings.Repeat("x", 2<<20)}},
		}, false)
		_, err = w.Compile(w.Job("b"), v, &action.Build{})
		if !elsewhere {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, `w.yml: the job "b": the workflow, its inputs, and the outputs of the jobs that `)
	}
}

func TestEventOfAWorkflowCanBeGiven(t *testing.T) {
	payload := `{"number": 7, "pull_request": {"head": {"ref": "a"}, "base": {"ref": "b"}, "draft": true}}`
	vars, pull := described(t, Source{
		Text: []byte("on: push" + jobs), Event: "pull_request", Payload: []byte(payload), Predefined: commitVars,
	})
	require.Equal(t, []string{"a", "b", "refs/pull/7/merge"},
		[]string{vars["GITHUB_HEAD_REF"], vars["GITHUB_BASE_REF"], vars["GITHUB_REF"]})
	require.Equal(t, true, under(pull, "pull_request")["draft"])

	vars, own := described(t, Source{Text: []byte("on: push" + jobs), Vars: []engine.Variable{
		{Key: "GITHUB_EVENT", Value: `{"a": 1}`},
		{Key: "GITHUB_EVENT_NAME", Value: "release"},
		{Key: "GITHUB_RUN_ID", Value: "5"},
	}})
	require.Equal(t, []string{"release", "5"}, []string{vars["GITHUB_EVENT_NAME"], vars["GITHUB_RUN_ID"]})
	require.Equal(t, map[string]any{"a": 1.0}, own)

	w, err := ReadWorkflow(Source{Name: "w.yml", Format: GitHub, Event: "issues", Text: []byte("on: push" + jobs)})
	require.NoError(t, err)
	require.Contains(t, strings.Join(w.Notices, "\n"), `the event issues does not start this workflow on GitHub`)

	for payload, want := range map[string]string{
		"null": "it is a JSON object", "[1]": "is not valid", "{": "is not valid", "1": "is not valid",
	} {
		require.ErrorContains(t, CheckPayload([]byte(payload)), want)
	}
	for name, is := range map[string]bool{"workflow_dispatch": true, "": false, "a b": false, "Push": false} {
		require.Equal(t, is, IsEventName(name), name)
	}
}
