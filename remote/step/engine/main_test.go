package engine

import (
	"os"
	"testing"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/remote/proc"
)

func TestMain(m *testing.M) {
	proc.Main()
	if len(os.Args) > 1 && os.Args[1] == "steps" { // a built-in step runs the program that the engine is in: this one
		_, _ = os.Stdout.WriteString("our own program\n")
		os.Exit(0)
	}
	runnertest.Main(m)
}
