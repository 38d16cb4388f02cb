package mux_test

import (
	"context"
	"fmt"
	"io"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// Processes over one connection, any number at once. The server here is a VM in miniature.
func Example() {
	vm, err := embeddedvm.Start(embeddedvm.Config{})
	if err != nil {
		panic(err)
	}
	defer vm.Close()

	ctx := context.Background()
	conn, err := mux.Dial(ctx, vm.Addr(), &mux.Config{
		User:     "ci",
		Auth:     []login.Auth{login.Key("example", vm.ClientSigner())},
		HostKeys: login.PinnedHostKeys(vm.HostKey()),
	})
	if err != nil {
		panic(err)
	}
	defer conn.Close()

	process, err := conn.Start(ctx, mux.Command{Line: "tr a-z A-Z; exit 3"})
	if err != nil {
		panic(err)
	}
	fmt.Fprint(process, "hello")
	_ = process.CloseWrite() // the process sees the end of its input
	out, err := io.ReadAll(process)
	fmt.Println(string(out), err)
	fmt.Println(process.Wait(ctx))
	// Output:
	// HELLO <nil>
	// remote process: exit status 3
}
