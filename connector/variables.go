package connector

import (
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Variable is a job variable: expressions know it, the environment of a step does not.
type Variable struct {
	// Key matches [A-Za-z_][A-Za-z0-9_]*. Those of one job differ.
	Key   string
	Value string
	// File says that steps get the path of a file with the value.
	File bool
	// Masked says that the value is a secret.
	Masked bool
}

// variables returns the job's variables as a request has them.
func (j *Job) variables() []*pb.Variable {
	list := make([]*pb.Variable, len(j.Vars))
	for i, v := range j.Vars {
		list[i] = &pb.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked}
	}
	return list
}

// managerVariables is variables for the step runner of a GitLab Runner.
func (j *Job) managerVariables() []*runnerproto.Variable {
	list := make([]*runnerproto.Variable, len(j.Vars))
	for i, v := range j.Vars {
		list[i] = &runnerproto.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked}
	}
	return list
}
