//go:build !joined

package proc

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A program is its own init, unless it is built with the tag joined: then cmd/stepmux-init is in its file. An init
// does not wait for main: in a program with gRPC and a command line, initialising the packages after this one takes a
// third of the time of its start.
func init() {
	if len(os.Args) > 1 && slices.Equal(os.Args[:2], initArgs) {
		unix.Exit(runInit()) // os.Exit of a program with the race detector sleeps for a second
	}
}
