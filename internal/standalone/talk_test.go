package standalone

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

func TestTalkShowsNamesAsStepsBeginAndATreeAtTheEnd(t *testing.T) {
	var out bytes.Buffer
	talk := NewTalk(&out, false)
	beside := talk.Beside(&out)
	talk.Notice("not done here: image")
	talk.Observe(engine.StepResult{Path: []string{"a"}, Status: engine.Running, Kind: engine.Sequence})
	talk.Observe(engine.StepResult{Path: []string{"a", "b"}, Status: engine.Running, Kind: engine.Command})
	_, _ = io.WriteString(beside, "no newline")
	talk.Observe(engine.StepResult{Path: []string{"a", "b"}, Status: engine.Failure, Kind: engine.Command})
	talk.Observe(engine.StepResult{Path: []string{"c"}, Status: engine.Running, Kind: engine.Command})
	talk.End(&Report{Status: "failure", Message: "exit\x1b[2Jstatus", Duration: 61.4, Steps: []StepReport{
		{Name: "a", Status: "failure", Duration: 1.2345, ExitCode: new(2), Steps: []StepReport{
			{Name: "b", Status: "failure", Duration: 0.0124, ExitCode: new(2), Warnings: []string{"no output"}},
		}},
		{Name: "c", Status: "skipped"},
	}})
	require.Equal(t, `note: not done here: image
> a
> a / b
no newline
> c
failure in 1m1s: exit?[2Jstatus
  failure     1.23s  a
    failure      12ms  b (exit status 2)
      warning: no output
  skipped            c
`, out.String())
}

func TestTalkHasColoursOnlyIfWanted(t *testing.T) {
	var out bytes.Buffer
	NewTalk(&out, true).End(&Report{Status: "success", Steps: []StepReport{{Name: "a", Status: "success"}}})
	require.Equal(t, "\x1b[32msuccess in 0s\x1b[0m\n  \x1b[32msuccess  \x1b[0m      0s  a\n", out.String())
}

// Only the first failure of a job had its reason shown, and none with continue-on-error.
func TestTalkShowsWhyEachStepFailed(t *testing.T) {
	var out bytes.Buffer
	first := `step "list": step "a": find step x: no such step`
	NewTalk(&out, false).End(&Report{Status: "failure", Message: first, Steps: []StepReport{
		{Name: "list", Status: "failure", Message: first, Steps: []StepReport{
			{Name: "a", Status: "failure", Message: `step "a": find step x: no such step`},
		}},
		{Name: "b", Status: "failure", Message: `step "b": find step y: no such step`},
		{Name: "c", Status: "failure", Message: `step "c": exec: exit status 3`, ExitCode: new(3)},
	}})
	require.Equal(t, `failure in 0s: `+first+`
  failure        0s  list
    failure        0s  a
  failure        0s  b
    find step y: no such step
  failure        0s  c (exit status 3)
`, out.String())
}
