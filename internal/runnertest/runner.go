// Package runnertest makes a test binary a step runner, so that tests of the manager's end have a real
// one on their VMs without building the program.
package runnertest

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote"
	"github.com/stepmux/stepmux/remote/proc"
)

// Main acts as `stepmux steps serve` or `stepmux steps proxy`, or as the shim of a process, and exits,
// if the command line asks for that; else it returns at once. It is the first line of TestMain.
func Main() {
	proc.Main()
	if len(os.Args) != 5 || os.Args[1] != "steps" || os.Args[3] != "--socket" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	stdio := remote.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	var err error
	switch os.Args[2] {
	case "serve":
		err = remote.Serve(ctx, stdio, remote.ServeConfig{Socket: os.Args[4]})
	case "proxy":
		err = remote.Proxy(ctx, stdio, remote.ProxyConfig{Socket: os.Args[4]})
	default:
		err = fmt.Errorf("unknown command %q", os.Args[2])
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "stepmux:", err)
		os.Exit(3)
	}
	os.Exit(0) //nolint:gocritic // stop is of no use to a process that ends
}

// Command returns the step runner's command: this test binary.
func Command(t testing.TB) []string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return []string{self}
}
