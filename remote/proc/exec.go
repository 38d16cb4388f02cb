package proc

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Find finds the program name as execvp(3) does, in the PATH of env, for a command that runs in dir, or in the current
// directory if dir is empty. The error is ENOENT if no directory of the PATH has the program, or EACCES if files of
// that name cannot be executed.
func Find(name, dir string, env []string) (string, error) {
	file, err := find(name, dir, env)
	if err != nil {
		return "", err
	}
	return in(dir, file), nil
}

// in returns the path of file, which is relative to dir or, if dir is empty, to the current directory.
func in(dir, file string) string {
	if dir == "" || strings.HasPrefix(file, "/") {
		return file
	}
	return dir + "/" + file
}

// find is Find, but returns the path as the program itself sees it, relative to dir.
func find(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
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
			entry = "." // an empty entry means ".", as in POSIX
		}
		file, at := entry+"/"+name, in(dir, entry+"/"+name)
		var st unix.Stat_t
		if unix.Stat(at, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if unix.Faccessat(unix.AT_FDCWD, at, unix.X_OK, unix.AT_EACCESS) == nil {
			return file, nil
		}
		found = unix.EACCES
	}
	return "", found
}
