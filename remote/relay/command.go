package relay

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/proc"
)

// Command is a command with the place that sshd would give it: the user's home, and this program's environment.
type Command struct {
	program string // its path
	argv    []string
	dir     string
	env     []string
	lingers bool // it outlives this process
	reuse   bool // it is a serve that may be given another build
}

// NewCommand returns the command of the request. The error is the relay's refusal.
func NewCommand(request *wire.RelayStart) (*Command, error) {
	c := &Command{argv: request.Argv, dir: HomeDir(), env: proc.LastOfEachKey(slices.Concat(os.Environ(), request.Env))}
	switch {
	case filepath.IsAbs(request.Dir):
		c.dir = request.Dir
	case request.Dir != "":
		c.dir = filepath.Join(c.dir, request.Dir)
	}
	if request.Line != "" {
		c.program = loginShell()
		c.argv = []string{filepath.Base(c.program), "-c", request.Line}
		return c, nil
	}
	var err error
	if c.program, err = proc.Find(c.argv[0], c.dir, c.env); err != nil {
		return nil, c.refusal(err)
	}
	return c, nil
}

// refusal explains why the command could not be found or started. The system's error alone does not name the missing
// file.
func (c *Command) refusal(err error) error {
	name := c.argv[0]
	if fi, statErr := os.Stat(c.dir); statErr != nil || !fi.IsDir() {
		code := wire.RelayFailed
		switch {
		case statErr == nil:
			code, statErr = wire.RelayNotFound, unix.ENOTDIR
		case errors.Is(statErr, fs.ErrNotExist):
			code = wire.RelayNotFound
		}
		return wire.RefuseRelay(code, "start %.160q: enter working directory %.160q: %v", name, c.dir, oserr.Bare(statErr))
	}
	switch {
	case errors.Is(err, unix.ENOENT) && c.program == "":
		return wire.RefuseRelay(wire.RelayNotFound, "start %.160q: no directory of the PATH on this machine has it", name)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return wire.RefuseRelay(wire.RelayNotFound,
			"start %.160q: %v (the program, or the interpreter its first line names)", name, err)
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	return wire.RefuseRelay(wire.RelayFailed, "start %.160q: %v%s", name, err, remedies[errno])
}

var remedies = map[syscall.Errno]string{
	unix.ENOEXEC: " (it is no program of this kind of machine, or a script whose first line names no interpreter)",
	unix.E2BIG:   " (arguments and environment together; pass what is large on stdin)",
	unix.EAGAIN:  " (the user has as many processes as allowed: raise ulimit -u, or TasksMax of the user's slice)",
	unix.EMFILE:  " (raise ulimit -n for logins on this machine)",
}

// HomeDir returns the user's home directory, or "/" if there is none.
func HomeDir() string {
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

// Start starts the command as the leader of a session, with these descriptors. The first three are its stdio. It
// becomes one of children. The error is the relay's refusal.
func (c *Command) Start(children *proc.Children, files ...int) (*proc.Child, error) {
	inherited := make([]uintptr, 0, 4)
	for _, fd := range files {
		inherited = append(inherited, uintptr(fd))
	}
	death := unix.SIGTERM
	if c.lingers {
		death = 0
	}
	start := children.Start
	if c.reuse {
		start = children.StartServer
	}
	child, err := start(c.program, c.argv, &syscall.ProcAttr{
		Dir:   c.dir,
		Env:   c.env,
		Files: inherited,
		// The kernel also sends this signal when the thread that started the process ends. Go ends a thread only when a
		// goroutine locked to it ends. So no goroutine of this program may end while it is locked to a thread.
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: death},
	})
	if err != nil {
		return nil, c.refusal(err)
	}
	return child, nil
}
