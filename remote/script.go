package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/relay"
	"github.com/stepmux/stepmux/remote/socketdir"
	"github.com/stepmux/stepmux/remote/step/component"
)

// ScriptConfig says how Script runs a script.
type ScriptConfig struct {
	// Shell is the command that gets the script on its standard input. Required.
	Shell []string
	// Options are the options of the VM, without Linger. TempDir is where the directory for Isolation is made, as for a
	// build's socket. If Limits are not available, the script does not start.
	vmconfig.Options
	// Size is the length of the script, in bytes.
	Size int64
	// Grace is the time between SIGTERM and SIGKILL when the script is stopped. If zero or negative, none: SIGKILL at
	// once.
	Grace time.Duration
}

// scriptExit is the exit status of a program that did not run its script.
const scriptExit = 1

// Script runs a script for a manager, in a session and process group of its own, with the given stdout and stderr.
// stdin has a line with a key and then the script. Script starts the shell when the whole script has arrived; from then
// on stdin is a leash.
//
// It returns the exit status for the program: the shell's, or 128 plus the signal's number if a signal ended the shell.
// The manager does not rely on that status. It reads the line with the key at the end of stdout and of stderr
// (wire.End).
//
// When stdin or ctx ends, the shell's process group gets SIGTERM, and after the grace everything is killed. When Script
// returns, all descendants of the shell are gone, whatever their process group. As for Relay, no other part of the
// program may start processes, and other processes of the user cannot look into this one: they would find the key.
func Script(ctx context.Context, stdin, stdout, stderr *os.File, cfg ScriptConfig) (status int, err error) {
	defer pipe.WithstandSIGPIPE()()
	if err := pipe.Conceal(); err != nil {
		return scriptExit, fmt.Errorf("script: %w", err)
	}
	in, err := pipe.Open(stdin)
	if err != nil {
		return scriptExit, fmt.Errorf("script: %w", err)
	}
	defer in.Close()
	stopReading := context.AfterFunc(ctx, func() { in.SetReadDeadline(time.Unix(1, 0)) })
	defer stopReading()
	key, err := readEndKey(in)
	if err != nil {
		return scriptExit, fmt.Errorf("script: %w", err)
	}
	end, limit := receiveAndRun(ctx, in, stdout, stderr, cfg)
	if limit != "" {
		fmt.Fprintf(stderr, "stepmux: %s\n", limit) // the manager may have gone
	}
	line := end.Append(nil, key)
	_, _ = stdout.Write(line) // the manager may have gone
	_, _ = stderr.Write(line)
	if end.Stage != "" {
		return scriptExit, nil // the line with the key has the reason
	}
	return end.Code, nil
}

// readEndKey reads the first line of stdin.
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
			return "", errors.New("read the key from standard input: the first line has no key: " +
				"only a manager can start this command")
		}
	}
}

// receiveAndRun reads the script and runs it. It returns the limit that was not available, or "".
func receiveAndRun(
	ctx context.Context, in *pipe.File, stdout, stderr *os.File, cfg ScriptConfig,
) (end wire.End, limit string) {
	text, failed := receiveScript(in, cfg.Size)
	if failed != nil {
		return *failed, ""
	}
	defer text.Close()
	alive := context.WithoutCancel(ctx) // for the clean-up
	init, remove, err := cfg.init(ctx)
	if err != nil {
		return wire.End{Stage: "machine", Text: err.Error()}, ""
	}
	shell, err := init.Start(alive, proc.Command{ // if ctx ends first, the script is stopped below
		Argv: cfg.Shell, Dir: relay.HomeDir(), Env: os.Environ(), Stdin: text, Stdout: stdout, Stderr: stderr,
	})
	if err != nil {
		stage := "machine"
		if _, isShell := errors.AsType[*proc.StartError](err); isShell {
			stage = "shell"
		}
		return wire.End{Stage: stage, Text: errors.Join(err, init.Close(), remove(alive)).Error()}, ""
	}
	leashed, stop := pipe.Watch(ctx, in)
	defer stop()
	exit, err := shell.Wait(leashed)
	if leashed.Err() != nil {
		killAt := time.Now().Add(cfg.Grace)
		shell.Stop(cfg.Grace)
		exit, err = shell.Wait(alive)
		shell.AwaitGroup(alive, func() time.Time { return killAt })
	}
	left := errors.Join(init.Close(), remove(alive))
	switch {
	case err != nil: // its init was killed
		return wire.End{Stage: "guard", Text: err.Error()}, ""
	case left != nil:
		return wire.End{Stage: "machine", Text: left.Error()}, ""
	}
	return shellEnd(exit, text, cfg), exit.Limit
}

// init returns the init of the script's processes. The function that it returns removes the init's files; call it once
// the init is closed.
func (cfg *ScriptConfig) init(ctx context.Context) (*proc.Init, func(context.Context) error, error) {
	if err := cfg.Check(); err != nil {
		return nil, nil, err
	}
	user, init, err := become(cfg.Options)
	if err != nil {
		return nil, nil, err
	}
	if cfg.Isolation == vmconfig.Off && user == nil {
		init.Room.Level = vmconfig.Off
		return init, func(context.Context) error { return nil }, nil
	}
	dir, err := socketdir.OpenNew(ctx, cfg.TempDir, "script-")
	if err == nil {
		if err = user.UseHome(dir.Path()); err != nil {
			err = errors.Join(err, dir.Remove(ctx))
		}
	}
	if err != nil {
		_ = init.Close() // the caller needs err
		user.Close()
		return nil, nil, err
	}
	init.Room, init.OrphanDir = room(cfg.Isolation, dir.Path(), component.DefaultDir()), dir.Path()
	return init, func(ctx context.Context) error {
		defer user.Close()
		return dir.Remove(ctx)
	}, nil
}

// receiveScript copies the script to a file in memory.
func receiveScript(in io.Reader, size int64) (*os.File, *wire.End) {
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, &wire.End{Stage: "tmp", Text: fmt.Sprintf("keep the script in memory: %v", err)}
	}
	text := os.NewFile(uintptr(fd), "script")
	n, err := io.CopyN(text, in, size)
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

// shellEnd turns the end of the shell into the end of the script. If the shell ends with 126 or 127 before it has read
// any of the script, the shell itself could not be started.
func shellEnd(exit proc.Exit, text *os.File, cfg ScriptConfig) wire.End {
	code := exit.Code
	if code == 126 || code == 127 {
		if at, err := text.Seek(0, io.SeekCurrent); err == nil && at == 0 && cfg.Size > 0 {
			return wire.End{Stage: "shell", Text: fmt.Sprintf("%q ended with exit status %d and read nothing of the script",
				strings.Join(cfg.Shell, " "), code)}
		}
	}
	return wire.End{Code: code}
}
