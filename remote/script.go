package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
)

// ScriptConfig says how Script runs a script.
type ScriptConfig struct {
	// Shell is the command that gets the script on its standard input. Required.
	Shell []string
	// Size is the length of the script.
	Size int64
	// Grace is the time between SIGTERM and SIGKILL when the script is stopped. If zero or less, none:
	// SIGKILL at once.
	Grace time.Duration
}

// scriptExit is the exit status of a program that could not run its script.
const scriptExit = 1

// Script runs a script for a manager, in a session and process group of its own, with stdout and stderr as
// they are. stdin has a line with a key, then the script, which is not begun before it is there whole, and
// is a leash from then on. Script returns the exit status for the program: that of the shell, 128 plus the
// signal's number if a signal ended it. The manager does not go by that, but by the line with the key that
// stdout and stderr end with (wire.End).
//
// When stdin or ctx ends the shell's process group gets SIGTERM, and after the grace all is killed. All that
// descends from the shell, in its group or not, is gone when Script returns. As for Relay it must be the only
// one in its program to start processes.
func Script(ctx context.Context, stdin, stdout, stderr *os.File, cfg ScriptConfig) (status int, err error) {
	defer withstandSIGPIPE()()
	in, restore, err := wakeable(stdin)
	if err != nil {
		return scriptExit, fmt.Errorf("script: %w", err)
	}
	defer restore()
	defer in.Close()
	stopReading := context.AfterFunc(ctx, func() { _ = in.SetReadDeadline(time.Unix(1, 0)) })
	defer stopReading()
	key, err := readEndKey(in)
	if err != nil {
		return scriptExit, fmt.Errorf("script: %w", err)
	}
	end := receiveAndRun(ctx, in, stdout, stderr, cfg)
	line := end.Append(nil, key)
	_, _ = stdout.Write(line) // the manager may have gone
	_, _ = stderr.Write(line)
	if end.Stage != "" {
		return scriptExit, nil // the manager was told
	}
	return end.Code, nil
}

// readEndKey reads the line that script begins with.
func readEndKey(in io.Reader) (string, error) {
	line := make([]byte, 0, wire.EndKeySize+1)
	for one := make([]byte, 1); ; {
		if _, err := io.ReadFull(in, one); err != nil {
			return "", fmt.Errorf("read the key from standard input: %w", err)
		}
		if one[0] == '\n' {
			return wire.ParseEndKey(string(line))
		}
		if line = append(line, one[0]); len(line) > wire.EndKeySize {
			return "", errors.New("read the key from standard input: it is started by a manager, there is nothing to be done with it by hand")
		}
	}
}

// receiveAndRun reads the script and runs it.
func receiveAndRun(ctx context.Context, in, stdout, stderr *os.File, cfg ScriptConfig) wire.End {
	text, failed := receiveScript(in, cfg.Size)
	if failed != nil {
		return *failed
	}
	defer text.Close()
	children, err := adopt(syscall.ForkExec)
	if err != nil {
		return wire.End{Stage: "machine", Text: err.Error()}
	}
	defer children.release()
	shell, err := startShell(children, cfg.Shell, text, stdout, stderr)
	if err != nil {
		return wire.End{Stage: "shell", Text: err.Error()}
	}
	leashed, stop := watchLeash(ctx, in)
	defer stop()
	select {
	case <-shell.exited:
	case <-leashed.Done():
		stopShell(children, shell, cfg.Grace)
	}
	children.signal(shell, unix.SIGKILL) // at once, so that it cannot outrun us by forking
	left := children.killAll(killTimeout)
	if !isClosed(shell.exited) {
		return wire.End{Stage: "machine", Text: fmt.Sprintf("%d processes could not be killed", left)}
	}
	return shellEnd(shell.status, text, cfg)
}

// receiveScript takes the script to a file that is nowhere but in memory.
func receiveScript(in io.Reader, size int64) (*os.File, *wire.End) {
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, &wire.End{Stage: "tmp", Text: fmt.Sprintf("keep the script in memory: %v", err)}
	}
	text := os.NewFile(uintptr(fd), "script")
	n, err := io.CopyN(onlyWriter{text}, in, size)
	if err == nil {
		_, err = text.Seek(0, io.SeekStart)
	}
	if err == nil {
		return text, nil
	}
	text.Close()
	stage := "truncated"
	if n < size && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		stage = "tmp"
	}
	return nil, &wire.End{Stage: stage, Text: fmt.Sprintf("%d of %d bytes arrived: %v", n, size, err)}
}

// onlyWriter hides ReadFrom: what a file does there for a pipe spins while the pipe is empty.
type onlyWriter struct{ io.Writer }

// startShell starts the shell on its script.
func startShell(children *children, argv []string, text, stdout, stderr *os.File) (*child, error) {
	c, err := newRelayCommand(&wire.RelayStart{Argv: argv})
	if err != nil {
		return nil, err
	}
	var started *child
	err = withFds(func(fds [3]int) error {
		started, err = children.start(c.program, c.argv, c.attr(fds))
		return err
	}, text, stdout, stderr)
	if err != nil {
		return nil, c.refusal(err)
	}
	return started, nil
}

// withFds calls fn with the descriptors of three files, and leaves their modes as they are.
func withFds(fn func([3]int) error, files ...*os.File) error {
	var fds [3]int
	var use func(i int) error
	use = func(i int) error {
		if i == len(fds) {
			return fn(fds)
		}
		raw, err := files[i].SyscallConn()
		if err != nil {
			return err
		}
		var inner error
		err = raw.Control(func(fd uintptr) {
			fds[i] = int(fd)
			inner = use(i + 1)
		})
		return errors.Join(err, inner)
	}
	return use(0)
}

// watchLeash returns a context that ends with ctx and with in. stop waits until in is not read any more.
func watchLeash(ctx context.Context, in *os.File) (leashed context.Context, stop func()) {
	leashed, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		drain(in)
		cancel(errLeash)
	}()
	return leashed, func() {
		cancel(nil)
		in.Close()
		<-done
	}
}

// stopShell asks the shell's group to end, and gives it its grace.
func stopShell(children *children, shell *child, grace time.Duration) {
	if grace <= 0 {
		return
	}
	children.signal(shell, unix.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-shell.alone:
	case <-timer.C:
	}
}

// shellEnd tells what the shell's end means. One that ends with what a shell says of a program it cannot
// start, and that has read nothing of its script, never was the script's shell.
func shellEnd(status syscall.WaitStatus, text *os.File, cfg ScriptConfig) wire.End {
	if status.Signaled() {
		return wire.End{Code: 128 + int(status.Signal())}
	}
	code := status.ExitStatus()
	if code == 126 || code == 127 {
		if at, err := text.Seek(0, io.SeekCurrent); err == nil && at == 0 && cfg.Size > 0 {
			return wire.End{Stage: "shell", Text: fmt.Sprintf("%q ended with exit status %d and read nothing of the script", strings.Join(cfg.Shell, " "), code)}
		}
	}
	return wire.End{Code: code}
}
