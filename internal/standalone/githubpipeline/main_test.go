package githubpipeline_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/remote/proc"
)

func TestMain(m *testing.M) {
	proc.Main()
	goleak.VerifyTestMain(m)
}
