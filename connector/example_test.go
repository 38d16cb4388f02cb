package connector_test

import (
	"fmt"

	"github.com/stepmux/stepmux/connector"
)

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
