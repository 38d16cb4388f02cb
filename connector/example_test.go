package connector_test

import (
	"context"
	"fmt"
	"os"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// ownLease is a share of a connection that the caller keeps open: its end closes nothing.
type ownLease struct{ conn *mux.Conn }

func (l ownLease) Conn() connector.Conn { return l.conn }
func (l ownLease) Release()             {}

// One job over a connection of the caller's, on a VM that has stepmux in its PATH.
func Example() {
	var conn *mux.Conn      // from mux.Dial
	vm := new(connector.VM) // one for each machine, kept for all its builds
	ctx := context.Background()
	c, err := connector.New(connector.Config{Lease: ownLease{conn}, VM: vm, BuildID: "job-4711", Log: os.Stderr})
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx) // ends the build on the VM; then c.Left says what may be left
	if _, err := c.Connect(ctx); err != nil {
		panic(err)
	}
	result, err := c.Execute(ctx, connector.Job{Job: &stepmuxv1.Job{Script: "set -e\nmake test\n"}}, os.Stdout)
	if err != nil { // the step runner did not report how the job ended
		panic(err)
	}
	fmt.Println(result.Status, result.ExitCode, result.Message)
}

// A build ID becomes a directory on the VM, so it is checked before anything happens.
func ExampleNew() {
	_, err := connector.New(connector.Config{
		Lease:   &lease{}, // from pool.Acquire
		VM:      new(connector.VM),
		BuildID: "../../etc",
	})
	fmt.Println(err)
	// Output:
	// invalid build ID "../../etc": byte '/' at 2; use A-Z a-z 0-9 . _ -
}
