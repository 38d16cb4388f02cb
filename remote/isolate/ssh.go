package isolate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/boundedfile"
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
	text, err := boundedfile.ReadBy(os.OpenFile, file, sshBytes)
	if err != nil {
		return nil // ssh will report the error
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(strings.Replace(line, "=", " ", 1))
		if len(words) < 2 || !strings.EqualFold(words[0], "include") {
			continue
		}
		for _, pattern := range words[1:] {
			pattern = strings.Trim(pattern, `"`)
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join("/etc/ssh", pattern)
			}
			files, _ := filepath.Glob(pattern) // ssh reports a bad pattern, too
			for _, included := range files {
				included, err := filepath.EvalSymlinks(included)
				if err != nil || done[included] || len(done) == sshFiles {
					continue
				}
				done[included] = true
				if err := r.copyOver(included, len(done)); err != nil {
					return err
				}
				if err := r.copyIncludes(included, done); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// copyOver mounts a copy over file, if it belongs to root and we can read it.
func (r *Room) copyOver(file string, n int) error {
	var st unix.Stat_t
	text, err := boundedfile.ReadBy(os.OpenFile, file, sshBytes)
	if err != nil || unix.Stat(file, &st) != nil || int(st.Uid) == os.Geteuid() {
		return nil //nolint:nilerr // ssh reports why it cannot read a file
	}
	own := r.place(r.memory, fmt.Sprintf("ssh-config-%d", n))
	if err := os.WriteFile(own, text, 0o400); err != nil {
		return bare("copy", file, err)
	}
	return mount(own, file, "", unix.MS_BIND, "")
}
