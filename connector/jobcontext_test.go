package connector

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

func TestContainersAreAddedToTheContextOfAWorkflowsJobOnly(t *testing.T) {
	containers := map[string]any{
		"container": map[string]any{"id": "c1"}, "services": map[string]any{"db": map[string]any{"id": "s1"}},
	}
	job := &pb.Job{Variables: []*pb.Variable{{Key: "A", Value: "{}"}, {Key: pb.JobContext, Value: `{"workflow_sha":"x",
		"services":{"db":{"ports":{"1":"1"}},"other":{}}}`}}}
	before := job.GetVariables()[1].GetValue()
	told := withContainers(job, containers)
	require.JSONEq(t, `{"workflow_sha":"x","container":{"id":"c1"},
		"services":{"db":{"id":"s1","ports":{"1":"1"}},"other":{}}}`, told.GetVariables()[1].GetValue())
	require.Equal(t, "{}", told.GetVariables()[0].GetValue())
	require.Equal(t, before, job.GetVariables()[1].GetValue(), "the caller's job stays as it is")
	require.Same(t, job, withContainers(job, nil))
	job.Variables[1].Value = "no JSON"
	require.Same(t, job, withContainers(job, containers))
	job.Variables = job.GetVariables()[:1]
	require.Same(t, job, withContainers(job, containers))
}
