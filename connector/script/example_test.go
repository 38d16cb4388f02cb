package script_test

import (
	"context"
	"fmt"
	"os"

	"github.com/stepmux/stepmux/connector/script"
	"github.com/stepmux/stepmux/mux"
)

// A script over a connection of the caller's. The VM needs no stepmux.
func ExampleRun() {
	var conn *mux.Conn // from mux.Dial
	code, err := script.Run(context.Background(), conn, script.Script{
		Text: []byte("set -e\nmake test\n"), Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil { // the machine or the connection failed, not the script
		panic(err)
	}
	fmt.Println("exit code", code)
}
