package service

import (
	"testing"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/remote/proc"
)

func TestMain(m *testing.M) {
	proc.Main()
	runnertest.Main(m)
}
