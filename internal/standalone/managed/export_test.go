package managed

import (
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone/whole"
)

// Read returns the pipeline that a manager reads from a request.
func Read(asked *pb.SubmitPipelineRequest, choice *pb.PipelineChoice) (*whole.Pipeline, error) {
	asked.Choice = choice
	p, _, err := read(asked)
	return p, err
}
