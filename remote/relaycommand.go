package remote

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
)

// relayCommand is a start request made ready for the system.
type relayCommand struct {
	program string // its path
	argv    []string
	dir     string
	env     []string
}

// newRelayCommand finds what the request asks for. The error is a refusal.
func newRelayCommand(request *wire.RelayStart) (*relayCommand, error) {
	c := &relayCommand{argv: request.Argv, dir: homeDir(), env: mergeEnv(os.Environ(), request.Env)}
	if request.Dir != "" {
		c.dir = inDir(c.dir, request.Dir)
	}
	if request.Line != "" {
		c.program = loginShell()
		c.argv = []string{filepath.Base(c.program), "-c", request.Line}
		return c, nil
	}
	var err error
	c.program, err = lookPath(c.argv[0], c.env, c.dir)
	if err != nil {
		return nil, c.refusal(err)
	}
	return c, nil
}

// refusal says why the command could not be started. The system's error alone does not tell what was
// missing.
func (c *relayCommand) refusal(err error) *refusal {
	name := c.argv[0]
	if fi, statErr := os.Stat(c.dir); statErr != nil || !fi.IsDir() {
		code := wire.RelayFailed
		switch {
		case statErr == nil:
			code, statErr = wire.RelayNotFound, unix.ENOTDIR
		case errors.Is(statErr, fs.ErrNotExist):
			code = wire.RelayNotFound
		}
		return &refusal{code, fmt.Sprintf("start %.160q: enter working directory %.160q: %v", name, c.dir, bare(statErr))}
	}
	why := ""
	switch {
	case errors.Is(err, errNotInPath):
		return &refusal{wire.RelayNotFound, fmt.Sprintf("start %.160q: no directory of the PATH on this machine has it", name)}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return &refusal{wire.RelayNotFound, fmt.Sprintf("start %.160q: %v (the program, or the interpreter its first line names)", name, err)}
	case errors.Is(err, unix.ENOEXEC):
		why = " (it is no program of this kind of machine, or a script whose first line names no interpreter)"
	case errors.Is(err, unix.E2BIG):
		why = " (arguments and environment together; pass what is large on stdin)"
	case errors.Is(err, unix.EAGAIN):
		why = " (the user has as many processes as allowed: raise ulimit -u, or TasksMax of the user's slice)"
	case errors.Is(err, unix.EMFILE):
		why = " (raise ulimit -n for logins on this machine)"
	}
	return &refusal{wire.RelayFailed, fmt.Sprintf("start %.160q: %v%s", name, err, why)}
}

// errNotInPath says that a program is in no directory of the PATH.
var errNotInPath = errors.New("not in PATH")

// lookPath finds the program name as execvp(3) does, in the PATH of env, relative to dir. The error is
// errNotInPath, or EACCES if all there is cannot be executed.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := ""
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	found := errNotInPath
	for _, in := range filepath.SplitList(path) {
		file := filepath.Join(inDir(dir, in), name) // an empty one is the working directory, as POSIX has it
		if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
			continue
		}
		if unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS) == nil {
			return file, nil
		}
		found = unix.EACCES
	}
	return "", found
}

// inDir returns path, relative to dir if it is relative.
func inDir(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// mergeEnv returns env with the entries of more in place of those with the same key.
func mergeEnv(env, more []string) []string {
	at := make(map[string]int, len(env)+len(more))
	merged := make([]string, 0, len(env)+len(more))
	for _, entries := range [][]string{env, more} {
		for _, entry := range entries {
			key, _, _ := strings.Cut(entry, "=")
			if i, ok := at[key]; ok {
				merged[i] = entry
				continue
			}
			at[key] = len(merged)
			merged = append(merged, entry)
		}
	}
	return merged
}

// homeDir returns the user's home, or the root if there is none.
func homeDir() string {
	home := os.Getenv("HOME")
	if fi, err := os.Stat(home); err != nil || !fi.IsDir() || !filepath.IsAbs(home) {
		return "/"
	}
	return home
}

func loginShell() string {
	if shell := os.Getenv("SHELL"); filepath.IsAbs(shell) {
		return shell
	}
	return "/bin/sh"
}

// attr returns how to start the command, with these files as its stdio.
func (c *relayCommand) attr(stdio [3]int) *syscall.ProcAttr {
	return &syscall.ProcAttr{
		Dir:   c.dir,
		Env:   c.env,
		Files: []uintptr{uintptr(stdio[0]), uintptr(stdio[1]), uintptr(stdio[2])},
		// The signal comes too when the thread ends that starts the process. Go ends no thread, unless a
		// goroutine that is locked to it ends: nothing in this program may do that.
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGTERM},
	}
}
