package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/instance/manager/customexecutor"
	"github.com/stepmux/stepmux/internal/buildinfo"
)

func newCustomExecutorCommand() *cobra.Command {
	const short = "Run jobs of a stock GitLab Runner on the VMs of a manager"
	return delegate("custom-executor", short, func(args []string) int {
		return customexecutor.Main(customexecutor.Call{
			Args: args, Env: os.Getenv, Stdout: os.Stdout, Stderr: os.Stderr, Version: buildinfo.Version(),
		})
	})
}
