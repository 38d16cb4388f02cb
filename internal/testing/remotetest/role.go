package remotetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
)

// RoleVar is the environment variable that makes a test binary play a role instead of running tests.
const RoleVar = "STEPMUX_TEST_ROLE"

// Role returns a command that runs this test binary as the role name. It is killed when ctx ends.
func Role(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// A program built with the race detector otherwise sleeps for a second before it exits.
	cmd.Env = append(os.Environ(), RoleVar+"="+name, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// PlayRole plays the role in RoleVar, if it is set, and exits. The roles dial and listen exist everywhere; play plays
// the others.
func PlayRole(play func(role string) error) {
	role := os.Getenv(RoleVar)
	var err error
	switch role {
	case "":
		return
	case "dial":
		err = dial(os.Args[1])
	case "listen":
		err = listen(os.Args[1])
	default:
		err = play(role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// NoRole is the play function for tests without roles of their own.
func NoRole(role string) error { return fmt.Errorf("no role %q", role) }

// dial connects to path without looking at the listener's user, and reads to the end.
func dial(path string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(os.Stdout, conn)
	return err
}

// listen listens on path, prints that on stdout, and ends when stdin ends.
func listen(path string) error {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer ln.Close()
	if _, err := os.Stdout.WriteString("up"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
