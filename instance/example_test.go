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
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// One build on one VM, from its slot to its end. examples/library has whole programs.
func Example() {
	key, err := login.KeyFile("/home/me/.ssh/id_ed25519")
	if err != nil {
		panic(err)
	}
	known, err := login.KnownHosts("/home/me/.ssh/known_hosts")
	if err != nil {
		panic(err)
	}
	group, err := instance.NewGroup(instance.Instance{
		ID:       "vm-1",
		Addr:     "vm-1.example.com:22",
		Capacity: 8,
		SSH:      mux.Config{User: "ci", Auth: []login.Auth{key}, HostKeys: known},
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
	defer build.Cleanup(ctx) // ends the build on the VM; then build.Left says what may be left
	if err := build.Prepare(ctx); err != nil {
		panic(err)
	}
	if _, err := build.Connect(ctx); err != nil {
		panic(err)
	}
	err = build.Execute(
		ctx,
		connector.Job{
			Job: &stepmuxv1.Job{
				Steps: []byte("run:\n  - name: hello\n    script: echo hello from $WHERE\n    env: {WHERE: a step}\n"),
			},
		},
	)
	if failed := (*instance.BuildError)(nil); errors.As(err, &failed) {
		fmt.Println(failed.Reason, failed.ExitCode)
	}
}

// The shortest use: a script on a VM. The README has these lines.
func Example_script() {
	var config mux.Config // the user, login.KeyFile and login.KnownHosts, as in the example of the package
	ctx := context.Background()
	group, err := instance.NewGroup(instance.Instance{ID: "vm-1", Addr: "vm-1:22", Capacity: 8, SSH: config})
	if err != nil {
		panic(err)
	}
	provider, err := instance.NewProvider(instance.Config{Group: group})
	if err != nil {
		panic(err)
	}
	defer provider.Close() // ends the connections
	build := provider.Executor(instance.Build{ID: "job-1", Log: os.Stdout})
	if err = build.Prepare(ctx); err == nil { // waits for a slot on a VM
		err = build.Run(ctx, []byte("make test")) // a shell script
	}
	err = errors.Join(err, build.Cleanup(context.WithoutCancel(ctx)))
	fmt.Println(err)
}

// The configuration of each VM is checked before anything is dialed.
func ExampleNewGroup() {
	_, err := instance.NewGroup(instance.Instance{ID: "vm-1", Addr: "192.0.2.7:22", Capacity: 8})
	fmt.Println(err)
	// Output:
	// instance vm-1: mux: Config.User is empty
}

// runnerEnvironment stands for the source of a build's client, as GitLab Runner's
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
	var provider *instance.Provider // as in the example of the package
	ctx := context.Background()
	build := provider.Executor(instance.Build{ID: "job-4711", Log: os.Stdout})
	defer build.Cleanup(ctx)
	environment := runnerEnvironment{build}
	client, err := environment.Prepare(ctx)
	if err != nil {
		panic(err)
	}
	defer client.Close() // ends what it started; the connection stays for other builds

	script := strings.NewReader("echo hello from a script\nexit 3\n")
	err = client.Run(ctx, runnerOptions{Command: "sh", Stdin: script, Stdout: os.Stdout, Stderr: os.Stderr})
	if failed := (*instance.BuildError)(nil); errors.As(err, &failed) {
		fmt.Println(failed.Reason, failed.ExitCode) // script_failure 3
	}

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
	fmt.Print(string(answer)) // OVER A CONNECTION
}
