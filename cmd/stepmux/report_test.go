package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
)

// A build that was lost, refused, timed out or cancelled had the exit code of a success.
//
//stepmux:faults executor | A build that was lost, refused, timed out or cancelled has the exit code 0 in its result
//stepmux:with internal/standalone.TestResultsHaveAnExitCodeOnlyWhereAScriptEnded
//stepmux:with remote/step/trace/recording.TestOnlyAStepWithAnEndedScriptHasAnExitCode
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
		data, err := json.Marshal(jsonBuildOf(batch.Report{Build: "b", Err: c.err}, "job.yml"))
		require.NoError(t, err)
		var got map[string]any
		require.NoError(t, json.Unmarshal(data, &got))
		require.Equal(t, c.want, got["exit_code"], "%s: %s", name, data)
	}
}

func TestWhatMayBeLeftIsInResultAndSummary(t *testing.T) {
	report := batch.Report{
		Build: "b1", Instance: "vm-1", Forced: "the step runner had not ended after 7s",
		Left: []string{"on vm-0: process 7 (\"sh\")", "on vm-1: directory /tmp/\x1b[31m"},
	}
	for _, output := range []string{"text", "json"} {
		var out, messages bytes.Buffer
		r := newReporter(output, &out, &messages, func(error) {})
		r.ended(report)
		r.summary([]batch.Report{report}, instance.Stat{})
		require.NoError(t, r.close(t.Context(), t.Context(), time.Minute))
		require.Contains(t, messages.String(), `b1: may be left on vm-0: process 7 ("sh"); on vm-1: directory /tmp/`)
		require.NotContains(t, messages.String()+out.String(), "\x1b")
		if output == "text" {
			require.Contains(t, messages.String(), "builds that may have left something on their VM: 1\n"+
				"step runners that steps end had to end: 1 (the step runner had not ended after 7s)\n")
			continue
		}
		var build struct {
			Left   []string `json:"left"`
			Forced string   `json:"forced"`
		}
		var last struct {
			Summary struct {
				Left int `json:"left"`
			} `json:"summary"`
		}
		results := json.NewDecoder(&out)
		require.NoError(t, results.Decode(&build))
		require.Len(t, build.Left, 2)
		require.Equal(t, "the step runner had not ended after 7s", build.Forced)
		require.Equal(t, `on vm-0: process 7 ("sh")`, build.Left[0])
		require.NoError(t, results.Decode(&last))
		require.Equal(t, 1, last.Summary.Left)
	}
}

func TestFailuresAlikeAreToldOnce(t *testing.T) {
	var out, messages bytes.Buffer
	const builds = 200
	r := newReporter("text", &out, &messages, func(error) {})
	r.watch(builds+1, func() instance.Stat { return instance.Stat{} })
	reports := make([]batch.Report, 0, builds+1)
	end := func(id, vm, cause string, code int) {
		_ = r.log(id, "job.yml", "", nil)
		r.started(id, vm)
		reports = append(reports, batch.Report{Build: id, Instance: vm, Err: &instance.BuildError{
			Reason: instance.ScriptFailure, ExitCode: code, Err: errors.New(cause),
		}})
		r.ended(reports[len(reports)-1])
	}
	for i := range builds {
		id := fmt.Sprintf("ab-%d", i+1+i/100)
		end(id, fmt.Sprintf("vm-%d", i%3), fmt.Sprintf("step of %s on vm-%d: process %d: exit status 1", id, i%3, 1000+i), 1)
	}
	end("ab-500", "vm-0", "exit status 2", 2)
	r.summary(reports, instance.Stat{Instances: []instance.VMStat{{ID: "vm-1"}, {ID: "vm-2"}}})
	require.NoError(t, r.close(t.Context(), t.Context(), time.Minute))
	text := messages.String()
	require.LessOrEqual(t, strings.Count(text, "\n"), 20, text)
	require.Contains(t, text,
		"ab-1 (job.yml on vm-0): script_failure: step of ab-1 on vm-0: process 1000: exit status 1\n")
	require.Contains(t, text, "failed alike: 200 builds, the first ab-1 (job.yml on vm-0): script_failure: step of ab-1")
	require.Contains(t, text, "\n  ab-1 to ab-100, ab-102 to ab-201\n")
	require.Contains(t, text, "failed: ab-500 (job.yml on vm-0): script_failure: exit status 2\n")
	require.Contains(t, text, "vm-0: left during the run, builds: 68\n")
}

func TestListsOfBuildsAreShort(t *testing.T) {
	var builds []string
	for i := range 1000 {
		builds = append(builds, fmt.Sprintf("b-%d", 2*i))
	}
	require.Less(t, len(names(builds)), 2*mostNames)
	require.Regexp(t, "^b-0, b-2, .*, and [0-9]+ more", names(builds))
	require.Equal(t, "a, b-7 to b-8, b-10, c", names([]string{"c", "b-10", "b-7", "a", "b-8"}))
}

// Symptom: the summary of 200 builds on one VM without isolation had the reason 200 times, each with another path, and
// so did the lines about what may be left.
//
//stepmux:faults users | Texts that differ by identifiers alone are told one by one
//stepmux:with internal/likeness.TestTextsThatDifferByIdentifiersAreAlike
func TestTextsThatDifferByIdentifiersAreToldOnce(t *testing.T) {
	var out, messages bytes.Buffer
	const builds = 200
	r := newReporter("text", &out, &messages, func(error) {})
	r.watch(builds, func() instance.Stat { return instance.Stat{} })
	reports := make([]batch.Report, 0, builds)
	for i := range builds {
		id := fmt.Sprintf("ab-%d", i+1)
		report := batch.Report{
			Build: id, Instance: "vm-1", Left: []string{fmt.Sprintf("on vm-1: process %d of %s (\"sh\")", i+1, id)},
			Cleanup:   fmt.Errorf("remove /tmp/stepmux-%d/%s: busy", i, id),
			Isolation: program.Isolation{Level: "off", Reason: fmt.Sprintf("show /dev/shm/x-%d/%s: missing", i, id)},
			Route: connector.Choice{
				Start: connector.Session, StartReason: fmt.Sprintf("the relay of %s (pid %d) has ended", id, i),
			},
			Err: &instance.BuildError{
				Reason: instance.RunnerSystemFailure, Err: fmt.Errorf("open /proc/self/fd/%d: no such file", i),
			},
		}
		reports = append(reports, report)
		r.ended(report)
	}
	r.summary(reports, instance.Stat{Instances: []instance.VMStat{{ID: "vm-1", Addr: "vm-1:22"}}})
	require.NoError(t, r.close(t.Context(), t.Context(), time.Minute))
	text := messages.String()
	require.LessOrEqual(t, strings.Count(text, "\n"), 20, text)
	for _, want := range []string{
		"ab-1: may be left on vm-1: process 1 of ab-1 (\"sh\")\n",
		"ab-1: clean-up on vm-1: remove /tmp/stepmux-0/ab-1: busy\n",
		"left alike: 200 builds, the first ab-1: may be left on vm-1: process 1 of ab-1 (\"sh\")\n  ab-1 to ab-200\n",
		"left alike: 200 builds, the first ab-1: clean-up on vm-1: remove /tmp/stepmux-0/ab-1: busy\n  ab-1 to ab-200\n",
		"builds that may have left something on their VM: 200\n",
		"isolation: off on vm-1: show /dev/shm/x-0/ab-1: missing\n",
		"  started by session: 200 (the relay of ab-1 (pid 0) has ended)\n",
		"failed alike: 200 builds, the first ab-1 ",
	} {
		require.Contains(t, text, want)
	}
}
