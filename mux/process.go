package mux

import (
	"context"
	"fmt"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
)

// These types are the same by every route. Package channel has them, so that package relay can do without SSH.
type (
	// Stream is a duplex byte stream to something on the VM, and a net.Conn.
	Stream = channel.Stream
	// Process is a process on the VM, and the Stream of its stdin and stdout.
	Process = channel.Process
	// Command is a command to start on the VM.
	Command = channel.Command
	// ExitError says how a remote process ended, if not with status 0.
	ExitError = channel.ExitError
)

// Start starts a process. When the server allows no more sessions at the moment, it waits for one, bounded by ctx. ctx
// means nothing to the process once it runs. The caller calls Wait, Close, or both.
func (c *Conn) Start(ctx context.Context, cmd Command) (*Process, error) {
	p, err := c.startSession(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return p.process(cmd), nil
}

// TryStart is Start that returns ErrSaturated instead of waiting for a session.
func (c *Conn) TryStart(ctx context.Context, cmd Command) (*Process, error) {
	p, err := c.tryStartSession(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return p.process(cmd), nil
}

func (c *Conn) startSession(ctx context.Context, cmd Command) (*sessionProcess, error) {
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	sessions, err := c.openSessions(ctx, "start", 1)
	if err != nil {
		return nil, err
	}
	return sessions[0].start(ctx, cmd)
}

func (c *Conn) tryStartSession(ctx context.Context, cmd Command) (*sessionProcess, error) {
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	sessions, err := c.tryOpenSessions(ctx, "start", 1)
	if err != nil {
		return nil, err
	}
	return sessions[0].start(ctx, cmd)
}

// shellLine returns c as a line for the login shell.
func shellLine(c Command) (string, error) {
	line := c.Line
	if len(c.Argv) > 0 {
		var err error
		if line, err = wire.Quote(c.Argv...); err != nil {
			return "", fmt.Errorf("start: %w", err)
		}
	}
	before := ""
	if len(c.Env) > 0 {
		export, err := wire.Quote(append([]string{"export"}, c.Env...)...)
		if err != nil {
			return "", fmt.Errorf("start: %w", err)
		}
		before = export + "; "
	}
	if c.Dir != "" {
		cd, err := wire.Quote("cd", "--", c.Dir)
		if err != nil {
			return "", fmt.Errorf("start: %w", err)
		}
		before += cd + " || exit 126; "
	}
	return before + line, nil
}
