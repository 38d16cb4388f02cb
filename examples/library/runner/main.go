// A runner of our own: it embeds package instance and runs the steps of a file as one build on a VM.
//
//	runner --vm ci@vm.example:22 --identity ~/.ssh/id_ed25519 --known-hosts ~/.ssh/known_hosts steps.yml
//
// The VM needs stepmux on its PATH; --command names another place.
// A real runner keeps the Provider for its life and makes an Executor for each build: all builds of a VM share one SSH
// connection.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

func main() {
	vm := flag.String("vm", "", "the VM, as user@host:port")
	identity := flag.String("identity", "", "private key for the login")
	knownHosts := flag.String("known-hosts", "", "file with the VM's host key")
	command := flag.String("command", "stepmux", "the step runner's command on the VM")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *vm, *identity, *knownHosts, *command, flag.Arg(0), os.Stdout)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, err)
	if failed, ok := errors.AsType[*instance.BuildError](err); ok && failed.Reason == instance.ScriptFailure {
		os.Exit(max(failed.ExitCode, 1)) // a step may fail without an exit code; stop has nothing to do any more
	}
	os.Exit(2)
}

// run runs the steps of a file on a VM and writes the build's log to log. When ctx ends the build is cancelled.
func run(ctx context.Context, vm, identity, knownHosts, command, file string, log io.Writer) (err error) {
	steps, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	key, err := login.KeyFile(identity)
	if err != nil {
		return err
	}
	hostKeys, err := login.KnownHosts(knownHosts)
	if err != nil {
		return err
	}
	user, addr, _ := strings.Cut(vm, "@")
	group, err := instance.NewGroup(instance.Instance{
		ID:       vm,
		Addr:     addr,
		Capacity: 8,
		Runner:   []string{command},
		SSH:      mux.Config{User: user, Auth: []login.Auth{key}, HostKeys: hostKeys},
	})
	if err != nil {
		return err
	}
	provider, err := instance.NewProvider(instance.Config{Group: group})
	if err != nil {
		return err
	}
	defer func() { _ = provider.Close() }() // the builds have ended

	build := provider.Executor(instance.Build{ID: "build-1", Log: log})
	defer func() { err = errors.Join(err, build.Cleanup(context.WithoutCancel(ctx))) }()
	if err := build.Prepare(ctx); err != nil { // a slot and a connection
		return err
	}
	for {
		if _, err := build.Connect(ctx); err != nil { // a step runner
			return err
		}
		err := build.Execute(ctx, connector.Job{Job: &stepmuxv1.Job{Steps: steps}})
		if failed := (*instance.BuildError)(nil); !errors.As(err, &failed) || !failed.Elsewhere {
			return err
		}
	}
}
