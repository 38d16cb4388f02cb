package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
)

// A build that was lost, refused, timed out or cancelled had the exit code of a success.
func TestResultOfABuildHasAnExitCodeOnlyIfItsScriptEnded(t *testing.T) {
	lost := func(reason instance.FailureReason, code int) *instance.BuildError {
		return &instance.BuildError{Reason: reason, ExitCode: code, Err: errors.New("why")}
	}
	for name, c := range map[string]struct {
		err  *instance.BuildError
		want any
	}{
		"success":             {nil, 0.0},
		"script":              {lost(instance.ScriptFailure, 3), 3.0},
		"script without code": {lost(instance.ScriptFailure, 0), nil},
		"lost":                {lost(instance.RunnerSystemFailure, 0), nil},
		"serve did not start": {lost(instance.RunnerSystemFailure, 127), nil},
		"refused":             {lost(instance.ConfigurationError, 0), nil},
		"timed out":           {lost(instance.JobExecutionTimeout, 0), nil},
		"cancelled":           {lost(instance.JobCanceled, 0), nil},
	} {
		data, err := json.Marshal(jsonBuildOf(batch.Report{Build: "b", Err: c.err}))
		require.NoError(t, err)
		var got map[string]any
		require.NoError(t, json.Unmarshal(data, &got))
		require.Equal(t, c.want, got["exit_code"], "%s: %s", name, data)
	}
}

func TestWhatMayBeLeftIsInResultAndSummary(t *testing.T) {
	report := batch.Report{
		Build: "b1", Instance: "vm-1", Left: []string{"process 7 (\"sh\")", "directory /tmp/\x1b[31m"},
	}
	for _, output := range []string{"text", "json"} {
		var out, messages bytes.Buffer
		r := newReporter(1, output, &out, &messages)
		r.ended(report)
		r.summary([]batch.Report{report}, instance.Stat{})
		require.NoError(t, r.close(t.Context(), t.Context(), time.Minute))
		require.Contains(t, messages.String(), `b1: may be left on vm-1: process 7 ("sh"); directory /tmp/`)
		require.NotContains(t, messages.String()+out.String(), "\x1b")
		if output == "text" {
			require.Contains(t, messages.String(), "builds that may have left something on their VM: 1\n")
			continue
		}
		var build struct {
			Left []string `json:"left"`
		}
		var last struct {
			Summary struct {
				Left int `json:"left"`
			} `json:"summary"`
		}
		results := json.NewDecoder(&out)
		require.NoError(t, results.Decode(&build))
		require.Len(t, build.Left, 2)
		require.Equal(t, `process 7 ("sh")`, build.Left[0])
		require.NoError(t, results.Decode(&last))
		require.Equal(t, 1, last.Summary.Left)
	}
}
