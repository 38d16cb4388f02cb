package giteadoor

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
)

// recorded has the calls of a conversation with a Gitea 1.26.0, and its answers, as lines of JSON.
const recorded = "testdata/gitea-1.26.0.jsonl"

// spokenJob is the workflow of the conversation.
const spokenJob = "on: push\njobs:\n  a: {runs-on: ubuntu-latest, steps: [{run: echo one}, {run: echo two}]}\n"

// spoken is a server with which the conversation is held.
type spoken struct {
	url, token string
	add        func() // lets a job wait
	cancel     func() // cancels the last job
}

// converse makes the calls of the conversation: all that a door makes, and those that the server refuses.
func converse(t *testing.T, s spoken) []giteatest.Call {
	t.Helper()
	proxy := giteatest.NewProxy(t, s.url)
	c := NewClient(proxy.URL)
	defer c.Close()
	ctx, labels := t.Context(), []string{"ubuntu-latest", "linux"}
	require.NoError(t, c.Ping(ctx))
	_, err := c.Register(ctx, "runner", "a wrong token", "1.0", labels, false)
	require.Error(t, err)
	runner, err := c.Register(ctx, "runner", s.token, "1.0", labels, false)
	require.NoError(t, err)
	_, _, err = c.As(Registration{UUID: runner.UUID, Token: "a wrong token"}).Fetch(ctx, 0, 1)
	require.True(t, isCode(err, codeUnauthenticated), err)
	_, _, err = c.As(Registration{UUID: "another", Token: runner.Token}).Fetch(ctx, 0, 1)
	require.True(t, isCode(err, codeUnauthenticated), err)
	c = c.As(runner)
	require.NoError(t, c.Declare(ctx, "1.0", labels))
	_, version, err := c.Fetch(ctx, 0, 1)
	require.NoError(t, err)
	_, _, err = c.Fetch(ctx, version, 1) // it does not look
	require.NoError(t, err)
	s.add()
	task := awaitTask(t, c)

	at := time.Unix(1700000000, 0).UTC()
	log := func(index int64, last bool, rows ...string) {
		var all []Row
		for _, text := range rows {
			all = append(all, Row{Time: at, Content: text})
		}
		_, _ = c.UpdateLog(ctx, task, index, all, last) // the server refuses some
	}
	log(0, false)
	log(0, false, "one", "two")
	log(1, false, "two", "three") // it has one of them
	log(7, false, "eight")        // it does not have those before
	log(3, true)                  // without a row it is not the end
	log(3, false, "four", "a\nb")
	tell := func(result string, steps []Step, outputs map[string]string) {
		_, _ = c.UpdateTask(ctx, &State{ID: task, Result: result, StartedAt: &at, Steps: steps}, outputs)
	}
	steps := []Step{{ID: 0, Result: resultSuccess, StartedAt: &at, StoppedAt: &at, LogLength: 2}, {ID: 1, StartedAt: &at}}
	tell(resultNone, steps, nil)
	tell("RESULT_NOTHING", steps, nil) // taken for one that runs
	log(5, true, "six")
	log(6, false, "seven") // it is closed
	log(6, true, "seven")
	log(0, false)
	tell(resultSuccess, steps, map[string]string{"name": "value"})
	tell(resultFailure, steps, nil) // the first one counts
	_, err = c.UpdateLog(ctx, task+1000, 0, nil, false)
	require.True(t, gone(err), err)
	_, err = c.UpdateTask(ctx, &State{ID: task + 1000, Result: resultNone}, nil)
	require.True(t, gone(err), err)

	other, err := NewClient(proxy.URL).Register(ctx, "other", s.token, "1.0", []string{"gpu"}, false)
	require.NoError(t, err)
	s.add()
	_, _, err = c.As(other).Fetch(ctx, 0, 1) // none of its labels
	require.NoError(t, err)
	task = awaitTask(t, c)
	_, err = c.As(other).UpdateTask(ctx, &State{ID: task, Result: resultNone}, nil)
	require.True(t, gone(err), err)
	s.cancel()
	tell(resultNone, nil, nil)
	log(0, true, "one")
	tell(resultCancelled, nil, nil)
	return proxy.Calls()
}

// awaitTask asks until there is a task: a server may need a moment to make it of a push.
func awaitTask(t *testing.T, c *Client) (id int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		tasks, _, err := c.Fetch(t.Context(), 0, 1)
		require.NoError(t, err)
		if len(tasks) > 0 {
			id = tasks[0].ID
		}
		return id != 0
	}, time.Minute, 50*time.Millisecond)
	return id
}

// lines returns calls as lines, without the parts that differ each time. Of questions without a task that come one
// after the other the first stays. Of a task the names of its fields stay.
func lines(t *testing.T, calls []giteatest.Call) string {
	t.Helper()
	var out bytes.Buffer
	empty := false
	for _, c := range calls {
		var request, response map[string]any
		require.NoError(t, json.Unmarshal(c.Request, &request), "%s", c.Request)
		require.NoError(t, json.Unmarshal(c.Response, &response), "%s", c.Response)
		task, _ := response["task"].(map[string]any)
		before := empty
		if empty = c.Method == "FetchTask" && task == nil && c.Status == http.StatusOK; empty && before {
			continue
		}
		if task != nil {
			response["task"] = slices.Sorted(maps.Keys(task))
		}
		without(request, c.Method)
		without(response, c.Method)
		line, err := json.Marshal(map[string]any{
			"method": c.Method, "status": c.Status, "request": request, "response": response,
		})
		require.NoError(t, err)
		out.Write(append(line, '\n'))
	}
	return out.String()
}

// without replaces the values that differ each time.
func without(fields map[string]any, method string) {
	for name, value := range fields {
		text, _ := value.(string)
		switch {
		case name == "token", name == "uuid", name == "tasksVersion" && text != "0":
			fields[name] = "a " + name
		case name == "id" && method == "Register":
			fields[name] = "an id"
		}
		if inner, is := value.(map[string]any); is {
			without(inner, method)
		}
	}
}

// The fake answers as a real server has answered: with the same codes, fields and values. make prove WHAT=gitea holds
// the conversation with the real one.
func TestTheFakeAnswersAsTheRealServer(t *testing.T) {
	f := giteatest.NewFake(t)
	var last int64
	calls := converse(t, spoken{
		url: f.URL, token: giteatest.RegistrationToken,
		add: func() {
			last = f.Add(giteatest.FakeTask{
				Workflow: spokenJob, RunsOn: []string{"ubuntu-latest"}, Context: map[string]any{"token": "a token"},
				Secrets: map[string]string{"GITHUB_TOKEN": "a token"},
			})
		},
		cancel: func() { f.Cancel(last) },
	})
	want, err := os.ReadFile(recorded)
	require.NoError(t, err)
	require.Equal(t, string(want), lines(t, calls))
}
