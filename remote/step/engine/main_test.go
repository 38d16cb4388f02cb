package engine

import (
	"fmt"
	"os"
	"testing"

	"github.com/stepmux/stepmux/internal/runnertest"
	"github.com/stepmux/stepmux/remote/proc"
)

func TestMain(m *testing.M) {
	proc.Main()
	if len(os.Args) > 1 && os.Args[1] == "steps" { // a built-in step runs the program that the engine is in: this one
		fmt.Println("our own program")
		os.Exit(0)
	}
	runnertest.Main(m)
}
