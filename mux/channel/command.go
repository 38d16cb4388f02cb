package channel

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Command is a command to start on the VM. Either Argv or Line is required.
type Command struct {
	// Argv is the program and its arguments. A relay starts the program itself. In a session the user's login shell
	// starts it: a POSIX shell, csh, tcsh or fish, for which the arguments are quoted.
	Argv []string
	// Line is a command line for the user's login shell. The caller quotes it.
	Line string
	// Dir is the working directory. If empty, the user's home.
	Dir string
	// Env is added to the environment of the login, as KEY=VALUE. In a session it is part of the command line,
	// which every user of the VM can see, and a KEY has letters, digits and _ only, and no digit first.
	Env []string
	// Ready is the path of a socket. The process prints a line once it listens there, and the relay's DialReady
	// waits for that line. A session ignores Ready.
	Ready string
	// Input is the beginning of the process's stdin, at most 32 KiB. A relay sends it with the request, so it arrives
	// a round trip earlier than bytes written after Start. Only the process sees it.
	Input []byte
	// Stderr receives the process's standard error as it comes, from one goroutine. If nil it is discarded. In a
	// session a Stderr that blocks also stalls the process's stdout: both share the channel's window (RFC 4254,
	// section 5.2). After its first error the rest is discarded.
	Stderr io.Writer
	// Leave is how long the process may have exited while its channel stays open, as another process has its output:
	// one that a start-up file of the login has left in the background. Then the channel is closed, and output that
	// comes later is lost. If zero, the process has not ended before that output has. A relay ignores Leave.
	Leave time.Duration
}

// maxInput bounds Command.Input. It fits the initial window of every route.
const maxInput = 32 << 10

// Check returns an error if c cannot be started by any route.
func (c *Command) Check() error {
	switch {
	case len(c.Argv) == 0 && c.Line == "":
		return errors.New("start: the command has neither Argv nor Line")
	case len(c.Argv) > 0 && c.Line != "":
		return errors.New("start: the command has both Argv and Line")
	case len(c.Input) > maxInput:
		return fmt.Errorf("start: the command has %d bytes of Input, at most %d are allowed: write the rest",
			len(c.Input), maxInput)
	}
	for _, entry := range c.Env {
		if key, _, ok := strings.Cut(entry, "="); !ok || key == "" {
			return errors.New("start: an environment entry is not KEY=VALUE") // without the entry: it may be a secret
		}
	}
	for _, text := range slices.Concat(c.Argv, c.Env, []string{c.Line, c.Dir}) {
		if strings.IndexByte(text, 0) >= 0 {
			return errors.New("start: the command has a NUL byte in it")
		}
	}
	return nil
}

// name returns the program, or the line if c has one.
func (c *Command) name() string {
	if len(c.Argv) > 0 {
		return c.Argv[0]
	}
	return c.Line
}
