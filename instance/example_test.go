package instance_test

import (
	"context"
	"fmt"
	"os"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/runnertest"
	"github.com/stepmux/stepmux/internal/vmtest"
	"github.com/stepmux/stepmux/mux"
)

// One build on one VM, from its slot to its end. The VM here is a miniature in this process; a real one
// has its own Addr, and mux.KeyFile and mux.KnownHosts say how to log in.
func Example() {
	program, err := runnertest.Program() // `stepmux`, as installed on the VM
	if err != nil {
		panic(err)
	}
	vm, err := vmtest.Start(vmtest.Config{})
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
			Auth:     []mux.Auth{mux.Key("example", vm.ClientSigner())},
			HostKeys: mux.PinnedHostKeys(vm.HostKey()),
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
