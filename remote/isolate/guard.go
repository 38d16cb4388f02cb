package isolate

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// guarded are the files in a home from which a login or a shell starts. A slash at the end marks a directory.
var guarded = []string{
	".ssh/", ".config/systemd/", ".config/environment.d/", ".config/autostart/", ".config/fish/", ".local/share/systemd/",
	".config/user-tmpfiles.d/", ".local/share/user-tmpfiles.d/", ".config/containers/systemd/", ".local/share/fish/",
	".local/share/bash-completion/", ".cache/stepmux/",
	".bashrc", ".bash_profile", ".bash_login", ".profile", ".bash_logout", ".bash_aliases", ".bash_completion",
	".bashrc.d/", // Fedora's .bashrc reads it
	".alias",     // openSUSE's bash reads it
	".config/bash_completion", ".i18n", ".config/locale.conf", ".inputrc",
	".zshenv", ".zprofile", ".zshrc", ".zlogin", ".zlogout", ".zcompdump",
	".kshrc", ".mkshrc", ".cshrc", ".tcshrc", ".login", ".logout",
	".pam_environment", ".rhosts", ".shosts", ".forward",
}

// created are the files that are made if they are missing, by the shell that needs them, with "" for all: otherwise a
// build could make them.
var created = []struct{ shell, names string }{
	// Debian 12's sshd takes the environment of every command from .pam_environment. The shells of Fedora run commands
	// in .i18n, and those of Arch in locale.conf. The user's systemd does what is in user-tmpfiles.d and, with podman,
	// in containers/systemd. A mail server runs the commands in .forward. It ignores an empty one.
	{"", ".ssh/ .config/systemd/ .config/environment.d/ .local/share/systemd/ .cache/stepmux/ .pam_environment .i18n " +
		".config/user-tmpfiles.d/ .local/share/user-tmpfiles.d/ .config/containers/systemd/ .forward " +
		".config/locale.conf"},
	// In .inputrc a key can stand for a command.
	{"bash", ".bashrc .bashrc.d/ .bash_aliases .bash_completion .bash_login .bash_logout .profile .bash_profile .alias " +
		".config/bash_completion .local/share/bash-completion/ .inputrc"},
	{"zsh", ".zshenv .zprofile .zshrc .zlogin .zlogout .zcompdump"}, // Ubuntu's zsh runs .zcompdump
	{"ksh", ".profile .kshrc"},
	{"mksh", ".profile .mkshrc"},
	{"csh", ".cshrc .login .logout"},
	{"tcsh", ".cshrc .login .logout .tcshrc"},
	{"sh", ".profile"},
	{"ash", ".profile"},
	{"dash", ".profile"},
	{"fish", ".config/fish/ .local/share/fish/"}, // with vendor_conf.d/ and vendor_functions.d/
}

// spools have the jobs of cron and at, which run outside the isolation. Without a user namespace, as for a build user,
// crontab and at have the rights to write there. On Alpine crontabs is a link.
var spools = []string{
	"/var/spool/cron", "/var/spool/cron/crontabs", "/var/spool/at", "/var/spool/atd", "/var/spool/atjobs",
}

// textOf returns the text of a created file. It changes nothing for a shell.
func textOf(name string) string {
	const made = "# Made by stepmux, so that no build can make it. The shell does the same without it.\n"
	switch name {
	case ".bash_profile":
		return made + "if [ -s ~/.bash_login ]; then . ~/.bash_login; elif [ -r ~/.profile ]; then . ~/.profile; fi\n"
	case ".config/locale.conf":
		return made + "if [ -r /etc/locale.conf ]; then . /etc/locale.conf; fi\n"
	case ".inputrc":
		return made + "$include /etc/inputrc\n"
	case ".tcshrc":
		return made + "if ( -r ~/.cshrc ) source ~/.cshrc\n"
	default:
		return ""
	}
}

// Guard makes the files read-only from which later builds start. An error does not say that the machine allows no
// isolation: without it other builds may change those files.
func (r *Room) Guard() error {
	if r.spec.Level == vmconfig.Off {
		return nil
	}
	g := &guard{home: r.spec.Home, dir: r.spec.Dir, pinned: map[string]bool{}, open: map[string]int{}}
	g.slow = g.home == "/" || g.home != "" && filepath.Clean(g.home) != g.home
	defer g.close()
	if home := r.spec.Home; r.spec.Level == vmconfig.Processes && home != "" && home != "/" && isDir(home) {
		if err := Prepare(home, r.spec.Shell); err != nil {
			return err
		}
		for _, name := range guarded {
			if err := g.freeze(home + "/" + strings.TrimSuffix(name, "/")); err != nil {
				return err
			}
		}
	}
	for _, path := range slices.Concat(spools, r.spec.ReadOnly) {
		if within(path, r.spec.Home) && path != r.spec.Home {
			if err := create(r.spec.Home, path, true, "", map[string]bool{}); err != nil {
				return err
			}
		}
		if err := g.freeze(path); err != nil {
			return err
		}
	}
	return nil
}

// Prepare makes the missing files in a home whose user has this login shell, so that no build can make them.
func Prepare(home, shell string) error {
	shell = filepath.Base(cmp.Or(shell, "bash"))
	permitted := map[string]bool{}
	for _, files := range created {
		if files.shell != "" && files.shell != shell {
			continue
		}
		for _, name := range strings.Fields(files.names) {
			err := create(home, filepath.Join(home, name), strings.HasSuffix(name, "/"), textOf(name), permitted)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// create makes the file or directory path in home if it is missing. It is no error if the user may not make it: a build
// may not either. permitted has the directories to which our user has all rights.
func create(home, path string, dir bool, text string, permitted map[string]bool) error {
	permit(home, filepath.Dir(path), permitted)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	switch {
	case err != nil:
	case dir:
		err = os.Mkdir(path, 0o700)
	default:
		var f *os.File
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
			_, err = f.WriteString(text)
			err = errors.Join(err, f.Close())
		}
	}
	if err == nil || errors.Is(err, fs.ErrExist) || errors.Is(err, unix.EROFS) ||
		errors.Is(err, fs.ErrPermission) && !isOurs(filepath.Dir(path)) {
		return nil // another build may have made it
	}
	return bare("make", path, err)
}

// permit gives our user all rights to the directory dir and to those on the way to it from home. A job may have taken
// them; no process could then find the files there until it gives them back.
func permit(home, dir string, permitted map[string]bool) {
	if permitted[dir] {
		return
	}
	if dir != home && within(dir, home) {
		permit(home, filepath.Dir(dir), permitted)
	}
	fi, err := os.Stat(dir)
	if err == nil && fi.Mode().Perm()&0o700 != 0o700 {
		_ = os.Chmod(dir, fi.Mode().Perm()|0o700) // if it fails, and dir is ours, so does a freeze
	}
	permitted[dir] = err == nil
}

// isOurs reports whether the file at path belongs to our user.
func isOurs(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && int(st.Uid) == os.Geteuid()
}

// maxLinks is how many symbolic links the kernel follows in a path.
const maxLinks = 40

// guard makes files read-only. A directory on the way to one from home, or a symbolic link, could be renamed, and
// another one put in its place. A mount point cannot be renamed; so a guard pins them.
type guard struct {
	home, dir string          // of the Spec
	pinned    map[string]bool // mount points, by path
	open      map[string]int  // their descriptors, for directories on the way
	slow      bool            // freezeDirect cannot be used: an older kernel, or a filter for system calls
}

// freeze makes path read-only if it exists.
func (g *guard) freeze(path string) (err error) {
	if !g.slow {
		err := g.freezeDirect(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		g.slow = errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)
		g.close() // what follows may mount over them
	}
	for range maxTries {
		err = g.freezeByFollowing(path)
		if !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another build has removed it. No build can remove a file that each one needs to be read-only
	}
	return err
}

// maxTries bounds how often freeze begins again because a job exchanges a file and a link all the time.
const maxTries = 20

// close closes the open directories.
func (g *guard) close() {
	for _, fd := range g.open {
		_ = unix.Close(fd)
	}
	clear(g.open)
}

// freezeDirect makes a path without symbolic links read-only. If a job puts one in, the error is ELOOP. It is for speed
// alone: whatever it refuses, freezeByFollowing decides.
func (g *guard) freezeDirect(path string) error {
	if within(g.home, path) || within(g.dir, path) || filepath.Clean(path) != path {
		return unix.EINVAL
	}
	at, name := unix.AT_FDCWD, path
	if within(path, g.home) {
		var err error
		if at, err = g.pinDirect(at, g.home, g.home); err != nil {
			return err
		}
		way := g.home
		name = path[len(g.home)+1:]
		for {
			first, rest, more := strings.Cut(name, "/")
			if name = first; !more {
				break
			}
			way += "/" + first
			if at, err = g.pinDirect(at, first, way); err != nil {
				return err
			}
			name = rest
		}
	}
	mounted, err := mountOver(at, name, 0, unix.MOUNT_ATTR_RDONLY)
	if err == nil {
		_ = unix.Close(mounted)
	}
	return err
}

// pinDirect pins the directory name in the directory at, whose whole path is way. It returns its descriptor, which
// close closes.
func (g *guard) pinDirect(at int, name, way string) (fd int, err error) {
	if fd, ok := g.open[way]; ok {
		return fd, nil
	}
	if g.pinned[way] {
		fd, err = openDirect(at, name, unix.O_DIRECTORY)
	} else {
		fd, err = mountOver(at, name, unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return -1, err
	}
	g.pinned[way], g.open[way] = true, fd
	return fd, nil
}

// openDirect opens the file name in the directory at, without symbolic links.
func openDirect(at int, name string, flags uint64) (int, error) {
	return unix.Openat2(at, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
}

// mountOver mounts a file that openDirect opens over itself, with all mounts below it and with these attributes. It
// returns a descriptor of the mount. Before Linux 5.12 its error is ENOSYS, and nothing is mounted.
func mountOver(at int, name string, flags, attributes uint64) (int, error) {
	fd, err := openDirect(at, name, flags)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fd) }()
	const clone = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH | unix.AT_RECURSIVE
	mounted, err := unix.OpenTree(fd, "", clone)
	if err != nil {
		return -1, err
	}
	if attributes != 0 {
		attr := unix.MountAttr{Attr_set: attributes}
		err = unix.MountSetattr(mounted, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	}
	if err == nil {
		err = unix.MoveMount(mounted, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	if err != nil {
		_ = unix.Close(mounted)
		return -1, err
	}
	return mounted, nil
}

// freezeByFollowing makes path read-only, and pins the links on the way to it.
func (g *guard) freezeByFollowing(path string) error {
	linked := false
	way, err := follow(path, func(next string, link fs.FileInfo, last bool) error {
		ours := within(next, g.home) || linked && unix.Access(filepath.Dir(next), unix.W_OK) == nil
		linked = linked || link != nil
		if !ours || g.pinned[next] || link == nil && last {
			return nil
		}
		err := pin(next, link != nil)
		g.pinned[next] = err == nil
		return err
	})
	if err == nil && way != "" && !within(g.home, way) && !within(g.dir, way) { // the build may write to those
		err = freeze(way)
	}
	return err
}

// follow returns path without symbolic links, or "" if it does not exist. It calls visit for each part of the way; link
// is nil unless the part is a link. An error of visit ends it, and so does a directory of ours that we may not enter.
func follow(path string, visit func(next string, link fs.FileInfo, last bool) error) (way string, err error) {
	way = "/"
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name, next := rest[0], filepath.Join(way, rest[0])
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		fi, err := os.Lstat(next)
		if errors.Is(err, fs.ErrPermission) && isOurs(way) {
			return "", bare("look at", next, err) // a job may give us the right later
		}
		if err != nil {
			return "", nil //nolint:nilerr // it does not exist
		}
		if fi.Mode()&fs.ModeSymlink == 0 {
			fi = nil
		}
		if err := visit(next, fi, len(rest) == 0); err != nil {
			return "", err
		}
		if fi == nil {
			way = next
			continue
		}
		to, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return "", nil //nolint:nilerr // no process can follow it
		}
		if filepath.IsAbs(to) {
			way = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return way, nil
}

// Follow returns path without symbolic links, for Show. It returns "" if path does not exist, or if it has a link that
// is not root's: a job can make such a link, which may lead to any hidden directory.
func Follow(path string) string {
	way, _ := follow(path, func(_ string, link fs.FileInfo, _ bool) error {
		if link != nil && link.Sys().(*syscall.Stat_t).Uid != 0 {
			return fs.ErrPermission
		}
		return nil
	})
	return way
}
