package service

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const givingJob = `
- name: outer
  run:
    - name: inner
      script: |
        echo '{"name":"E","value":"exported"}' > ${{ export_file }}
        cat ${{ vars.FILE }}; echo ${{ vars.PLAIN }}
`

func TestFollowSendsNestedStepsAndTheirOutputs(t *testing.T) {
	h := newHarness(t)
	req := yaml("1", givingJob)
	req.Job.Variables = []*pb.Variable{{Key: "FILE", Value: "content\n", File: true}, {Key: "PLAIN", Value: "plain"}}
	h.run(req)
	require.Equal(t, "content\nplain\n", h.output("1").stdout())
	changes, last := h.follow("1")
	require.Equal(t, []string{"outer running", "inner running", "inner success", "outer success"}, changes)
	outer := last.GetResult().GetChildrenStepResults()[0]
	inner := outer.GetChildrenStepResults()[0]
	require.Equal(t, []string{"outer", "inner"}, inner.GetPath())
	for _, r := range []*pb.StepResult{last.GetResult(), outer, inner} {
		export := r.GetExports()["E"]
		require.Equal(t, "exported", export.GetValue())
		require.Equal(t, structpb.NewStringValue("exported").String(), export.GetTyped().String())
	}
}

func TestFollowSendsTheOutputsOfAJobWithoutItsSecrets(t *testing.T) {
	h := newHarness(t)
	req := yaml("1", `
spec: {outputs: {open: {type: number}, secret: {type: string, sensitive: true}}}
---
exec:
  command:
    - sh
    - -c
    - 'printf "{\"name\":\"open\",\"value\":7}\n{\"name\":\"secret\",\"value\":\"geheim\"}\n" > ${{ output_file }}'
`)
	h.run(req)
	_, last := h.follow("1")
	outputs := last.GetResult().GetOutputs()
	require.Equal(t, "7", outputs["open"].GetValue())
	require.Equal(t, 7.0, outputs["open"].GetTyped().GetNumberValue())
	require.True(t, outputs["secret"].GetMasked())
	require.NotContains(t, last.String(), "geheim")
}

func TestVariablesAreChecked(t *testing.T) {
	h := newHarness(t)
	for want, vars := range map[string][]*pb.Variable{
		"variables[0].key: use letters, digits, _ ":             {{Key: "../geheim", File: true}},
		"variables[1].key: an earlier variable has the same":    {{Key: "A"}, {Key: "A", Value: "geheim"}},
		"variables: the values have more than 8388608 bytes":    {{Key: "A", Value: string(make([]byte, 8<<20+1))}},
		"variables[0].key: use letters, digits, _ and -, a let": {nil},
	} {
		req := yaml("1", "- script: x\n")
		req.Job.Variables = vars
		message := h.refused(req, codes.InvalidArgument)
		require.Contains(t, message, want)
		require.NotContains(t, message, "geheim")
	}
}

func TestEnvOfARequestIsChecked(t *testing.T) {
	h := newHarness(t)
	req := yaml("1", "- script: x\n")
	req.Job.Env = map[string]string{"1BAD": "geheim"}
	message := h.refused(req, codes.InvalidArgument)
	require.Contains(t, message, "env must be alphanumeric with underscores")
	require.NotContains(t, message, "geheim")
}

func TestStepsOfARequestAreAsThoseOfAText(t *testing.T) {
	h := newHarness(t)
	value, err := structpb.NewValue("echo ${{ steps.a.status }}")
	require.NoError(t, err)
	h.run(&pb.RunRequest{Id: "1", Type: pb.RunRequest_step, Steps: []*pb.Step{
		{Name: "a", Exec: &pb.Exec{Command: []string{"true"}}},
		{Name: "b", Step: "builtin://script", Inputs: map[string]*structpb.Value{"script": value}},
		{Name: "c", Script: "echo c", When: "always", Condition: `steps.b.status == "failure"`},
	}})
	require.Equal(t, "success\n", h.output("1").stdout())
	changes, _ := h.follow("1")
	require.Equal(t, []string{"a running", "a success", "b running", "b success", "c skipped"}, changes)
}

func TestResultThatIsTooLargeIsSentWithoutOutputs(t *testing.T) {
	small := &pb.FollowResponse{Result: &pb.StepResult{Outputs: map[string]*pb.StepResult_Output{"a": {Value: "x"}}}}
	require.NotEmpty(t, fit(small).GetResult().GetOutputs())

	large := &pb.FollowResponse{Result: &pb.StepResult{Message: "kept", ChildrenStepResults: []*pb.StepResult{
		{Exports: map[string]*pb.StepResult_Output{"a": {Value: strings.Repeat("x", maxMessage)}}, Message: "kept too"},
	}}}
	require.Less(t, proto.Size(fit(large)), 1000)
	require.Equal(t, "kept too", large.GetResult().GetChildrenStepResults()[0].GetMessage())
	require.Len(t, large.GetResult().GetWarnings(), 1)
}
