package proc

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Find finds the program name as execvp(3) does, in the PATH of env, for a command that runs in dir, or in the current
// directory if dir is empty. The error is ENOENT if no directory of the PATH has it, or EACCES if no file of that name
// can be executed.
func Find(name, dir string, env []string) (string, error) {
	file, err := find(name, dir, env)
	if err != nil {
		return "", err
	}
	return in(dir, file), nil
}

// in returns the path of a file that dir, or the current directory, has.
func in(dir, file string) string {
	if dir == "" || strings.HasPrefix(file, "/") {
		return file
	}
	return dir + "/" + file
}

// find is Find with a path that counts from dir, as the program itself sees it.
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
			entry = "." // as POSIX has it
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
