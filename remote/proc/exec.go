package proc

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// execute starts the command of o as the leader of a session of its own, and returns its pid. This process
// enters the working directory for it.
func execute(o *order) (int, *failure) {
	if err := unix.Chdir(o.dir); err != nil {
		return 0, fail(stageDir, err)
	}
	program, err := Find(o.argv[0], "", o.env)
	if err != nil {
		return 0, fail(stagePath, err)
	}
	pid, err := syscall.ForkExec(program, o.argv, &syscall.ProcAttr{
		Env:   o.env,
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, fail(stageExec, err)
	}
	return pid, nil
}

// Find finds the program name as a command with the environment env does that runs in dir, or in the current
// directory if that is empty: as execvp(3), in the PATH of env. The error is ENOENT, or EACCES if all there is
// cannot be executed.
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
