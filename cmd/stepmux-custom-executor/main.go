// The stepmux-custom-executor program is the command "stepmux custom-executor" alone. GitLab Runner starts it four to
// eight times for each job, and the large program of the manager would take long to start.
package main

import (
	"os"
	"runtime/debug"

	"github.com/stepmux/stepmux/instance/manager/customexecutor"
	"github.com/stepmux/stepmux/internal/buildinfo"
)

func main() {
	buildinfo.FromGo = debug.ReadBuildInfo
	os.Exit(customexecutor.Main(customexecutor.Call{
		Args: os.Args[1:], Alone: true, Env: os.Getenv, Stdout: os.Stdout, Stderr: os.Stderr, Version: buildinfo.Version(),
	}))
}
