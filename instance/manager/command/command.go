package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/wire"
)

const (
	// Piece is the largest piece of input or output that is passed on at once, in bytes.
	Piece = 64 << 10
	// MaxLine bounds a command line, in bytes.
	MaxLine = 128 << 10
)

// Line is a command line for the login's shell.
type Line struct {
	Text string
	// Tools puts the tools of the VM's stepmux first in the PATH.
	Tools bool
}

// toolsLine runs a command line with the tools of the VM's stepmux first in the PATH. It is for any login shell.
// GitLab's ssh executor runs its scripts by "bash -l", whose profile sets a new PATH: BASH_ENV, a file that bash reads
// after that, adds the tools again.
const toolsLine = `case $1 in "bash -l"|"bash --login") f=$STEPMUX_TOOLS/profile; ` +
	`[ ! -d "$STEPMUX_TOOLS" ] || [ -e "$f" ] || ` +
	`{ echo "case :\$PATH: in *:$STEPMUX_TOOLS:*) ;; *) PATH=$STEPMUX_TOOLS:\$PATH;; esac" >"$f.$$" && ` +
	`mv "$f.$$" "$f"; }; ` +
	`[ ! -e "$f" ] || export BASH_ENV="$f";; esac; ` +
	`PATH=${STEPMUX_TOOLS:+$STEPMUX_TOOLS:}$PATH; export PATH; unset STEPMUX_TOOLS; exec "${SHELL:-/bin/sh}" -c "$1"`

// Check returns an error unless the line can be run.
func (l Line) Check() error {
	_, err := l.quoted()
	return err
}

// quoted returns the command line for the login's shell.
func (l Line) quoted() (string, error) {
	if l.Text == "" || len(l.Text) > MaxLine {
		return "", fmt.Errorf("a command line has 1 to %d bytes, not %d", MaxLine, len(l.Text))
	}
	if !l.Tools {
		return l.Text, nil
	}
	line, err := wire.LoginLine("sh", "-c", toolsLine, "sh", l.Text)
	return "exec " + line, err
}

// Runner runs commands on the VM of an executor. It is safe for concurrent use.
type Runner struct {
	executor *instance.Executor

	mu   sync.Mutex // guards the following
	bare bool       // the VM has no stepmux
}

// On returns the Runner of an executor, which the caller prepares before the first command, and cleans up after the
// last.
func On(executor *instance.Executor) *Runner { return &Runner{executor: executor} }

// Equip is Executor.Equip, which Run calls, too, unless the VM has no stepmux.
func (r *Runner) Equip(ctx context.Context) (missing string, err error) {
	if missing, err = r.executor.Equip(ctx); err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bare = missing != ""
	}
	return missing, err
}

// Client is Executor.Client.
func (r *Runner) Client(ctx context.Context) (*instance.Client, error) { return r.executor.Client(ctx) }

// start starts a command. The caller closes the connection and the client.
func (r *Runner) start(ctx context.Context, line Line, stderr io.Writer) (
	conn *instance.CommandConn, client *instance.Client, err error,
) {
	text, err := line.quoted()
	if err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	bare := r.bare
	r.mu.Unlock()
	if !bare { // the connection may be another by now
		if _, err := r.Equip(ctx); err != nil {
			return nil, nil, err
		}
	}
	if client, err = r.executor.Client(ctx); err != nil {
		return nil, nil, err
	}
	if conn, err = client.Start(ctx, text, stderr); err != nil {
		_ = client.Close() // always nil
		return nil, nil, err
	}
	return conn, client, nil
}

// Run runs a command on the VM and waits for its end. When ctx ends, the command is ended. It returns the exit code, or
// why that is not known. The error is a *instance.BuildError.
func (r *Runner) Run(ctx context.Context, line Line, in *Inputs, stdout, stderr io.Writer) (code int, err error) {
	conn, client, err := r.start(ctx, line, stderr)
	if err != nil {
		return 0, err
	}
	defer func() { _, _ = conn.Close(), client.Close() }() // always nil
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer in.Stop()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	feeding.Go(func() { in.feed(conn) })
	feeding.Go(func() { in.send(conn) })
	buf := make([]byte, Piece)
	var failed error
	for {
		n, err := conn.Read(buf)
		if n > 0 && failed == nil {
			if _, failed = stdout.Write(buf[:n]); failed != nil {
				_ = conn.Close() // always nil
			}
		}
		if err != nil {
			break // Wait tells why
		}
	}
	err = conn.Wait(ctx)
	built, _ := errors.AsType[*instance.BuildError](err)
	switch {
	case failed != nil:
		return 0, failed
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case built != nil && built.Reason == instance.ScriptFailure:
		return built.ExitCode, nil
	default:
		return 0, err
	}
}
