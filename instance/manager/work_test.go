package manager

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// A message named a line of a .gitlab-ci.yml, and meant the text that was made from it.
func TestMessagesNameNoFileThatHasNotTheSteps(t *testing.T) {
	job := &pb.Job{StepsFile: ".gitlab-ci.yml test"}
	require.Equal(t, job.GetStepsFile(), (&Manager{}).work(&build{job: job}).StepsFile)
	job.Generated = true
	require.Empty(t, (&Manager{}).work(&build{job: job}).StepsFile)
}
