package proc

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// execute starts c as the leader of a session of its own, and returns its family. This process enters the working
// directory for it.
func execute(c *Command) (*family, *failure) {
	if err := unix.Chdir(c.Dir); err != nil {
		return nil, fail(stageDir, err)
	}
	program, err := Find(c.Argv[0], "", c.Env)
	if err != nil {
		return nil, fail(stagePath, err)
	}
	sys := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	attr := &syscall.ProcAttr{Env: c.Env, Files: []uintptr{0, 1, 2}, Sys: sys}
	f := &family{reaper: newReaper()}
	f.leader, err = f.start(func() (int, error) { return syscall.ForkExec(program, c.Argv, attr) })
	if err != nil {
		return nil, fail(stageExec, err)
	}
	return f, nil
}

// Find finds the program name as execvp(3) does, in the PATH of env, for a command that runs in dir, or in the current
// directory if dir is empty. The error is ENOENT if no directory of the PATH has it, or EACCES if no file of that name
// can be executed.
func Find(name, dir string, env []string) (string, error) {
	in := func(file string) string {
		if dir == "" || strings.HasPrefix(file, "/") {
			return file
		}
		return dir + "/" + file
	}
	if strings.Contains(name, "/") {
		return in(name), nil
	}
	path := ""
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	if path == "" {
		return "", unix.ENOENT
	}
	var found error = unix.ENOENT
	for _, entry := range strings.Split(path, ":") {
		if entry == "" {
			entry = "." // as POSIX has it
		}
		file := in(entry + "/" + name)
		var st unix.Stat_t
		if unix.Stat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS) == nil {
			return file, nil
		}
		found = unix.EACCES
	}
	return "", found
}
