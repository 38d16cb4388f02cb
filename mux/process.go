package mux

import (
	"context"
	"fmt"
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
	quote := func(words ...string) string {
		quoted, e := wire.Quote(words...)
		if e != nil {
			err = fmt.Errorf("start: %w", e)
		}
		return quoted
	}
	for _, entry := range c.Env {
		if name, _, _ := strings.Cut(entry, "="); !isShellName(name) {
			return "", fmt.Errorf("start: a login shell cannot set the variable %.80q: its name must have letters, digits "+
				"and _ only, and no digit first", name)
		}
	}
	if len(c.Env) > 0 {
		line = quote(append([]string{"export"}, c.Env...)...) + "; "
	}
	if c.Dir != "" {
		line += quote("cd", "--", c.Dir) + " || exit 126; "
	}
	if len(c.Argv) > 0 {
		return line + quote(c.Argv...), err
	}
	return line + c.Line, err
}

// isShellName reports whether a shell can set a variable of that name, which is not empty.
func isShellName(name string) bool {
	return (name[0] < '0' || name[0] > '9') && !strings.ContainsFunc(name, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}
