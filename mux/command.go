package mux

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
)

// These types are the same on every route. Package channel defines them, so that package relay does not depend on
// SSH.
type (
	// Stream is a duplex byte stream to something on the VM, and a net.Conn.
	Stream = channel.Stream
	// Process is a process on the VM, and the Stream of its stdin and stdout.
	Process = channel.Process
	// Command is a command to start on the VM.
	Command = channel.Command
	// ExitError reports that a remote process ended with anything but status 0.
	ExitError = channel.ExitError
)

// Start starts a process. If the server allows no more sessions at the moment, Start waits for one, bounded by ctx.
// ctx has no effect once the process runs. The caller calls Wait, Close, or both.
func (c *Conn) Start(ctx context.Context, cmd Command) (*Process, error) {
	_, p, err := c.startSession(ctx, cmd, c.openSessions)
	return p, err
}

// TryStart is Start that returns ErrSaturated instead of waiting for a session.
func (c *Conn) TryStart(ctx context.Context, cmd Command) (*Process, error) {
	_, p, err := c.startSession(ctx, cmd, c.tryOpenSessions)
	return p, err
}

// shellLine returns c as a line for the login shell.
func shellLine(c Command) (line string, err error) {
	for _, entry := range c.Env {
		if name, _, _ := strings.Cut(entry, "="); !isShellName(name) {
			return "", fmt.Errorf("start: a login shell cannot set the variable %.80q: its name must have letters, digits "+
				"and _ only, and no digit first", name)
		}
	}
	argv := c.Argv
	if len(c.Env) > 0 || c.Dir != "" {
		argv = slices.Concat([]string{"sh", "-c", enterScript, "sh", c.Dir, strconv.Itoa(len(c.Env))}, c.Env, argv)
		if len(c.Argv) == 0 {
			argv = append(argv, "sh", "-c", lineScript, "sh", c.Line)
		}
	}
	if len(argv) == 0 {
		return c.Line, nil
	}
	if line, err = wire.LoginLine(argv...); err != nil {
		return "", fmt.Errorf("start: %w", err)
	}
	return line, nil
}

// enterScript sets the $2 variables that follow, changes to the directory $1, and runs the command after them. Not
// every login shell has a POSIX shell's export and cd.
const enterScript = `_dir=$1 _n=$2; shift 2; while [ "$_n" -gt 0 ]; do export "$1"; shift; _n=$((_n-1)); done; ` +
	`[ -z "$_dir" ] || cd -- "$_dir" || exit 126; exec "$@"`

// lineScript runs the command line $1 by the login shell.
const lineScript = `exec "${SHELL:-/bin/sh}" -c "$1"`

// isShellName reports whether a shell can set a variable of that name, which is not empty.
func isShellName(name string) bool {
	return (name[0] < '0' || name[0] > '9') && !strings.ContainsFunc(name, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}
