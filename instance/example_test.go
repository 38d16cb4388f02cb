package instance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/runnertest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// One build on one VM, from its slot to its end. The VM here is a miniature in this process; a real one
// has its own Addr, and login.KeyFile and login.KnownHosts say how to log in.
func Example() {
	program, err := runnertest.Program() // `stepmux`, as installed on the VM
	if err != nil {
		panic(err)
	}
	vm, err := embeddedvm.Start(embeddedvm.Config{})
	if err != nil {
		panic(err)
	}
	defer vm.Close()

	group, err := instance.NewGroup(instance.Instance{
		ID:       "vm-1",
		Addr:     vm.Addr(),
		Capacity: 8,
		Runner:   []string{program},
		SSH: mux.Config{
			User:     "ci",
			Auth:     []login.Auth{login.Key("example", vm.ClientSigner())},
			HostKeys: login.PinnedHostKeys(vm.HostKey()),
		},
	})
	if err != nil {
		panic(err)
	}
	provider, err := instance.NewProvider(instance.Config{Group: group})
	if err != nil {
		panic(err)
	}
	defer provider.Close()

	ctx := context.Background()
	build := provider.Executor(instance.Build{ID: "job-4711", Log: os.Stdout})
	defer build.Cleanup(ctx) // nothing of the build is left when it returns
	if err := build.Prepare(ctx); err != nil {
		panic(err)
	}
	if _, err := build.Connect(ctx); err != nil {
		panic(err)
	}
	err = build.Execute(ctx, connector.Job{
		Steps: []byte("run:\n  - name: hello\n    script: echo hello from $WHERE\n    env: {WHERE: a step}\n"),
	})
	fmt.Println("error:", err)
	// Output:
	// hello from a step
	// error: <nil>
}

// runnerEnvironment stands for what a runner asks for a build's client, as GitLab Runner's
// executors.Environment is, with the runner's own types.
type runnerEnvironment struct{ build *instance.Executor }

// runnerOptions stands for a runner's own RunOptions.
type runnerOptions struct {
	Command        string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// runnerDialer is a client in the runner's types: all methods are instance.Client's, but for one conversion.
type runnerDialer struct{ *instance.Client }

func (c runnerDialer) Run(ctx context.Context, options runnerOptions) error {
	return c.Client.Run(ctx, instance.RunOptions(options))
}

// Prepare took a connection for each build before; now it takes a share of the instance's.
func (e *runnerEnvironment) Prepare(ctx context.Context) (runnerDialer, error) {
	if err := e.build.Prepare(ctx); err != nil {
		return runnerDialer{}, err
	}
	client, err := e.build.Client(ctx)
	return runnerDialer{client}, err
}

// A runner that has an executor of its own takes its client from here.
func ExampleClient() {
	vm, err := embeddedvm.Start(embeddedvm.Config{})
	if err != nil {
		panic(err)
	}
	defer vm.Close()
	group, err := instance.NewGroup(instance.Instance{
		ID:   "vm-1",
		Addr: vm.Addr(),
		SSH: mux.Config{
			User:     "ci",
			Auth:     []login.Auth{login.Key("example", vm.ClientSigner())},
			HostKeys: login.PinnedHostKeys(vm.HostKey()),
		},
	})
	if err != nil {
		panic(err)
	}
	provider, err := instance.NewProvider(instance.Config{Group: group})
	if err != nil {
		panic(err)
	}
	defer provider.Close()

	ctx := context.Background()
	build := provider.Executor(instance.Build{ID: "job-4711", Log: os.Stdout})
	defer build.Cleanup(ctx)
	environment := runnerEnvironment{build}
	client, err := environment.Prepare(ctx)
	if err != nil {
		panic(err)
	}
	defer client.Close() // ends what it started; the connection is there for other builds

	script := strings.NewReader("echo hello from a script\nexit 3\n")
	err = client.Run(ctx, runnerOptions{Command: "sh", Stdin: script, Stdout: os.Stdout, Stderr: os.Stderr})
	failed := (*instance.BuildError)(nil)
	fmt.Println(errors.As(err, &failed), failed.Reason, failed.ExitCode)

	conn, err := client.DialRun(ctx, `read -r line; echo "$line" | tr a-z A-Z`)
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, "over a connection")
	answer, err := io.ReadAll(conn)
	if err != nil {
		panic(err)
	}
	fmt.Print(string(answer))
	// Output:
	// hello from a script
	// true script_failure 3
	// OVER A CONNECTION
}
