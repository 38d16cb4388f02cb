package mux_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// Several processes over one connection, each with a stdin, a stdout and an exit status of its own.
func Example() {
	ctx := context.Background()
	identity, err := login.KeyFile("/home/ci/.ssh/id_ed25519")
	if err != nil {
		log.Fatal(err)
	}
	hosts, err := login.KnownHosts("/home/ci/.ssh/known_hosts")
	if err != nil {
		log.Fatal(err)
	}
	conn, err := mux.Dial(ctx, "192.0.2.7:22", &mux.Config{
		User:     "ci",
		Auth:     []login.Auth{identity},
		HostKeys: hosts,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	for _, line := range []string{"tr a-z A-Z", "wc -c", "exit 3"} {
		process, err := conn.Start(ctx, mux.Command{Line: line})
		if err != nil {
			log.Fatal(err)
		}
		_, _ = io.WriteString(process, "hello")
		_ = process.CloseWrite() // the process sees the end of its stdin
		out, err := io.ReadAll(process)
		fmt.Println(string(out), err)
		fmt.Println(process.Wait(ctx)) // nil, or "remote process: exit status 3"
	}
}
