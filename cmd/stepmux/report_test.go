package main

import (
	"encoding/json"
	"errors"
	"testing"

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
