package isolate

import (
	"bytes"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	sshFiles = 64      // bounds the included files of OpenSSH's configuration that are copied
	sshBytes = 1 << 20 // bounds one of them, in bytes
)

// sshConfig replaces the files that OpenSSH's configuration includes by copies. In a user namespace the files of root
// belong to nobody, and ssh refuses to include such a file. Without one, as for a build user, there are no copies: the
// build can change them, and ssh-keysign, which has root's rights there, reads them.
func (r *Room) sshConfig() error {
	var root unix.Stat_t
	_ = unix.Stat("/", &root) // never fails
	if root.Uid == 0 {
		return nil
	}
	done := map[string]bool{}
	return r.copyIncludes("/etc/ssh/ssh_config", done)
}

// copyIncludes replaces the files that file includes, and the files that these include.
func (r *Room) copyIncludes(file string, done map[string]bool) error {
	text := readRegular(file) // if it cannot be read, ssh reports why
	for more := true; more; {
		var line []byte
		line, text, more = bytes.Cut(text, []byte("\n"))
		for _, pattern := range included(line) {
			pattern = strings.Trim(pattern, `"`)
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join("/etc/ssh", pattern)
			}
			for _, file := range glob(pattern) {
				file, err := filepath.EvalSymlinks(file)
				if err != nil || done[file] || len(done) == sshFiles {
					continue
				}
				done[file] = true
				if err := r.copyOver(file, len(done)); err != nil {
					return err
				}
				if err := r.copyIncludes(file, done); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// glob returns the files that match the absolute pattern; ssh reports a bad one. Mostly its directory is a plain path,
// which is read without an os.File, see readRegular.
func glob(pattern string) (files []string) {
	slash := strings.LastIndexByte(pattern, '/')
	dir, name := pattern[:slash+1], pattern[slash+1:]
	if strings.ContainsAny(dir, `*?[\`) {
		files, _ = filepath.Glob(pattern)
		return files
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	var entries [8 << 10]byte
	var names []string
	for {
		n, err := unix.ReadDirent(fd, entries[:])
		if n <= 0 || err != nil {
			break
		}
		_, _, names = unix.ParseDirent(entries[:n], -1, names)
	}
	for _, found := range names {
		if is, _ := filepath.Match(name, found); is {
			files = append(files, dir+found)
		}
	}
	slices.Sort(files)
	return files
}

// included returns the patterns of files that a line of OpenSSH's configuration includes.
func included(line []byte) []string {
	const word = "include"
	line = bytes.TrimLeft(line, " \t\r\f=")
	if len(line) < len(word) || !strings.EqualFold(string(line[:len(word)]), word) {
		return nil // most lines: the rest takes memory
	}
	words := strings.Fields(strings.Replace(string(line), "=", " ", 1))
	if len(words[0]) != len(word) {
		return nil
	}
	return words[1:]
}

// copyOver mounts a copy over file, if it belongs to root and we can read it.
func (r *Room) copyOver(file string, n int) error {
	var st unix.Stat_t
	text := readRegular(file)
	if text == nil || unix.Stat(file, &st) != nil || int(st.Uid) == unix.Geteuid() {
		return nil //nolint:nilerr // ssh reports why it cannot read a file
	}
	own := r.place(r.memory, "ssh-config-"+strconv.Itoa(n))
	fd, err := unix.Open(own, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o400)
	if err == nil {
		var n int
		if n, err = unix.Write(fd, text); err == nil && n < len(text) {
			err = unix.ENOSPC
		}
		_ = unix.Close(fd)
	}
	if err != nil {
		return bare("copy", file, err)
	}
	return mount(own, file, "", unix.MS_BIND, "")
}

// readRegular returns the text of a regular file of at most sshBytes, or nil if it cannot be read. An os.File would
// take more memory, and descriptors to wait for it.
func readRegular(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > sshBytes {
		return nil
	}
	text := make([]byte, st.Size)
	for read := 0; read < len(text); {
		n, err := unix.Read(fd, text[read:])
		if n <= 0 || err != nil {
			return nil
		}
		read += n
	}
	return text
}
