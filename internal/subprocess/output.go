// Package subprocess runs the operator's commands and returns their output, bounded in time and size.
package subprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// maxSaid bounds the part of standard error in the error of a failed command.
	maxSaid = 512
	// pipeGrace is how long a background process of an ended command may hold its output open.
	pipeGrace = time.Second
)

// Limit bounds a command. Time and Bytes are required.
type Limit struct {
	Time  time.Duration
	Bytes int // of standard output
	// Said is called with the beginning of the standard error of a command that has succeeded, if there is any.
	// Optional.
	Said func(text string)
	// Input is the standard input of the command. If nil, it is empty.
	Input io.Reader
	// Env is the environment of the command. If nil, it is ours.
	Env []string
}

// errTooMuch ends a command that prints more than its limit.
var errTooMuch = errors.New("the program prints too much")

// Output runs argv without a shell and returns its standard output. If a command takes too long, prints too much or
// outlives ctx, it is killed with its process group. The error says which of them it was and has the beginning of the
// standard error; it wraps the [exec.ExitError] of a command that has failed by itself. It never has standard output,
// because that may be a secret. On Linux the command is also killed when our process is.
func Output(ctx context.Context, argv []string, limit Limit) ([]byte, error) {
	if len(argv) == 0 {
		return nil, errors.New("run a command: it is empty")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, stop := context.WithTimeoutCause(ctx, limit.Time, fmt.Errorf("the program has not ended after %v", limit.Time))
	defer stop()
	out := &bounded{limit: limit.Bytes, full: func() { cancel(errTooMuch) }}
	said := &bounded{limit: maxSaid, full: func() {}}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = limit.Input, out, said, limit.Env
	cmd.SysProcAttr = attributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeGrace
	runtime.LockOSThread() // the kernel kills the command when the thread that has started it ends
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	switch {
	case errors.Is(err, errTooMuch):
		return nil, fmt.Errorf("run %s: %w: more than %d bytes", argv[0], err, limit.Bytes)
	case errors.Is(err, exec.ErrWaitDelay):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what is left of its group
		return nil, fmt.Errorf("run %s: it ended, but something it started holds its output open", argv[0])
	case err != nil && said.buf.Len() > 0:
		return nil, fmt.Errorf("run %s: %w; it said: %q", argv[0], err, strings.TrimSpace(said.buf.String()))
	case err != nil:
		return nil, fmt.Errorf("run %s: %w", argv[0], err)
	}
	if limit.Said != nil && said.buf.Len() > 0 {
		limit.Said(said.buf.String())
	}
	return out.buf.Bytes(), nil
}

// Look checks that a command's program exists, so that a wrong name is found before the command is needed.
func Look(argv []string) error {
	if len(argv) == 0 {
		return errors.New("the command is empty")
	}
	_, err := exec.LookPath(argv[0])
	return err // the error names the program
}

// bounded keeps the first limit bytes and calls full when more come. Its Write never fails, because the command's error
// would then be about its output pipe.
type bounded struct {
	buf   bytes.Buffer
	limit int
	full  func()
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.limit - b.buf.Len()
	if len(p) > room {
		b.full()
	}
	b.buf.Write(p[:min(len(p), room)])
	return len(p), nil
}
