package mux_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// A process has a stdin, a stdout and an exit status of its own. Here the VM is an SSH server in this process.
func ExampleConn_Start() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	vm, err := embeddedvm.Start(embeddedvm.Config{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer vm.Close()
	ctx := context.Background()
	conn, err := mux.Dial(ctx, vm.Addr(), &mux.Config{
		User:     "ci",
		Auth:     []login.Auth{login.Key("of the VM", vm.ClientSigner())},
		HostKeys: login.PinnedHostKeys(vm.HostKey()),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	process, err := conn.Start(ctx, mux.Command{Line: "tr a-z A-Z; exit 3"})
	if err != nil {
		log.Fatal(err)
	}
	defer process.Close()
	_, _ = io.WriteString(process, "hello")
	_ = process.CloseWrite() // the process sees the end of its stdin
	out, err := io.ReadAll(process)
	fmt.Println(string(out), err)
	fmt.Println(process.Wait(ctx))
	// Output:
	// HELLO <nil>
	// remote process: exit status 3
}
