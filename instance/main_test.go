package instance_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/runnertest"
)

func TestMain(m *testing.M) {
	runnertest.Main()
	goleak.VerifyTestMain(m)
}
