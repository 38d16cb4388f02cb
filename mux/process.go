package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/wire"
)

// Command is what to start on the VM. Either Argv or Line is required.
type Command struct {
	// Argv is the program and its arguments. A relay starts it as it is, sshd by way of the user's
	// login shell, for which it is quoted.
	Argv []string
	// Line is a command line for the user's login shell. The caller quotes it.
	Line string
	// Dir is the working directory. If empty, the user's home.
	Dir string
	// Env is added to the environment of the login, as KEY=VALUE. Over a session it is part of the command
	// line, which every user of the VM can see.
	Env []string
	// Ready is the path of the socket of which the process will say that it listens on it, for
	// [Relay.DialReady]. A session makes nothing of it.
	Ready string
	// Input is what the process's stdin begins with, at most 32 KiB. By a relay it travels with the request: it is
	// there a round trip earlier than what is written after Start. Nobody but the process sees it.
	Input []byte
	// Stderr receives what the process writes to its standard error, from one goroutine, as it
	// comes. If nil it is discarded. Over a session, a Stderr that blocks stalls the process's stdout too:
	// both share the channel's window (RFC 4254, section 5.2). Its errors are ignored, the rest is
	// discarded.
	Stderr io.Writer
}

// maxInput bounds Command.Input. It fits every window there is at the start.
const maxInput = 32 << 10

// check returns what is wrong with c.
func (c *Command) check() error {
	switch {
	case len(c.Argv) == 0 && c.Line == "":
		return errors.New("start: the command has neither Argv nor Line")
	case len(c.Argv) > 0 && c.Line != "":
		return errors.New("start: the command has both Argv and Line")
	case len(c.Input) > maxInput:
		return fmt.Errorf("start: the command has %d bytes of Input, at most %d are allowed: write the rest", len(c.Input), maxInput)
	}
	for _, entry := range c.Env {
		if key, _, ok := strings.Cut(entry, "="); !ok || key == "" {
			return errors.New("start: an environment entry is not KEY=VALUE") // it may be a secret
		}
	}
	for _, text := range slices.Concat(c.Argv, c.Env, []string{c.Line, c.Dir}) {
		if strings.IndexByte(text, 0) >= 0 {
			return errors.New("start: the command has a NUL byte in it")
		}
	}
	return nil
}

// shellLine returns c as a line for the login shell.
func (c *Command) shellLine() (string, error) {
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

// Process is a process on the VM. As a [Stream] it writes to the process's stdin and reads its
// stdout; CloseWrite ends its stdin.
//
// Over a session, Close closes the channel, which the process sees as the end of its stdin and of its
// readers; it is not killed, for SSH has no such request: what must end with its channel watches its
// stdin. A process of a [Relay] is ended by Close: SIGTERM to its process group, a grace, SIGKILL.
type Process struct {
	*Stream
	impl remoteProcess
}

// remoteProcess is a Process by one of the routes.
type remoteProcess interface {
	duplex
	exitedC() <-chan struct{} // closed once the end is known and all of stderr has been delivered
	err() error               // valid then
	signal(name string) error
}

func newProcess(impl remoteProcess) *Process { return &Process{Stream: &Stream{impl}, impl: impl} }

// Wait waits until the process has ended, its channel is closed and all of stderr is delivered. It
// returns nil for exit status 0, an [*ExitError] for any other end, a [*ConnError] or [*RelayError] when
// the connection or the relay was lost before the end was known, and ctx's cause when ctx ends first
// (the process goes on). It may be called again, and by several. Unread stdout may hold the process up.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.Exited():
		return p.Err()
	case <-ctx.Done():
		return fmt.Errorf("wait for remote process: %w", context.Cause(ctx))
	}
}

// Exited returns a channel that is closed when Wait would return.
func (p *Process) Exited() <-chan struct{} { return p.impl.exitedC() }

// Err returns what Wait does, once Exited is closed; nil before.
func (p *Process) Err() error {
	select {
	case <-p.Exited():
		return p.impl.err()
	default:
		return nil
	}
}

// Signal sends a signal, named without "SIG" as in "TERM" (RFC 4254, section 6.9): by a relay to the
// process's group, over a session by the server. OpenSSH ignores it for root logins and without saying
// so: do not rely on it.
func (p *Process) Signal(name string) error { return p.impl.signal(name) }

// Start starts a process. It waits for a session, bounded by ctx, when the server allows no more at
// the moment. ctx means nothing to the process once it runs. The caller calls Wait, Close, or both.
func (c *Conn) Start(ctx context.Context, cmd Command) (*Process, error) {
	if err := cmd.check(); err != nil {
		return nil, err
	}
	sessions, err := c.openSessions(ctx, "start", 1)
	if err != nil {
		return nil, err
	}
	return sessions[0].start(ctx, cmd)
}

// TryStart is Start that returns ErrSaturated instead of waiting for a session.
func (c *Conn) TryStart(ctx context.Context, cmd Command) (*Process, error) {
	if err := cmd.check(); err != nil {
		return nil, err
	}
	opened, err := c.tryOpenSessions(ctx, "start", 1)
	if err != nil {
		return nil, err
	}
	return opened[0].start(ctx, cmd)
}
