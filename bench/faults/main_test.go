package faults

import (
	"testing"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

func TestMain(m *testing.M) {
	Main() // the test binary is also the processes of a round
	runnertest.Main(m)
}
