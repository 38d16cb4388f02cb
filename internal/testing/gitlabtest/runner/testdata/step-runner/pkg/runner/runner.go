// Package runner stands for the step runner's interface to built-in steps.
package runner

import (
	"io"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
)

// BuiltinContext is given to a built-in step.
type BuiltinContext interface {
	GetJobVars() map[string]*structpb.Value
	GetEnvs() map[string]string
	Pipe() (stdout, stderr io.Writer)
	WorkDir() string
	GracefulExitDelay() time.Duration
}
