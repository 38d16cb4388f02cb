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
var created = []struct {
	shell string
	names []string
}{
	// Debian 12's sshd takes the environment of every command from .pam_environment. The shells of Fedora run commands
	// in .i18n, and those of Arch in locale.conf. The user's systemd does what is in user-tmpfiles.d and, with podman,
	// in containers/systemd. A mail server runs the commands in .forward. It ignores an empty one.
	{"", []string{
		".ssh/", ".config/systemd/", ".config/environment.d/", ".local/share/systemd/", ".cache/stepmux/",
		".pam_environment", ".i18n", ".config/user-tmpfiles.d/", ".local/share/user-tmpfiles.d/",
		".config/containers/systemd/", ".forward", ".config/locale.conf",
	}},
	// In .inputrc a key can stand for a command.
	{"bash", []string{
		".bashrc", ".bashrc.d/", ".bash_aliases", ".bash_completion", ".bash_login", ".bash_logout", ".profile",
		".bash_profile", ".alias", ".config/bash_completion", ".local/share/bash-completion/", ".inputrc",
	}},
	// Ubuntu's zsh runs .zcompdump.
	{"zsh", []string{".zshenv", ".zprofile", ".zshrc", ".zlogin", ".zlogout", ".zcompdump"}},
	{"ksh", []string{".profile", ".kshrc"}},
	{"mksh", []string{".profile", ".mkshrc"}},
	{"csh", []string{".cshrc", ".login", ".logout"}},
	{"tcsh", []string{".cshrc", ".login", ".logout", ".tcshrc"}},
	{"sh", []string{".profile"}},
	{"ash", []string{".profile"}},
	{"dash", []string{".profile"}},
	{"fish", []string{".config/fish/", ".local/share/fish/"}}, // with vendor_conf.d/ and vendor_functions.d/
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
	g := &guard{home: r.spec.Home, dir: r.spec.Dir, pinned: map[string]bool{}}
	g.slow = g.home == "/" || g.home != "" && filepath.Clean(g.home) != g.home
	if !g.slow && g.dir != g.home && within(g.dir, g.home) {
		g.dirInHome = g.dir[len(g.home)+1:]
	}
	defer g.close()
	if home := r.spec.Home; r.spec.Level == vmconfig.Processes && home != "" && home != "/" && isDir(home) {
		if err := Prepare(home, r.spec.Shell); err != nil {
			return err
		}
		for _, name := range guarded {
			if err := g.freezeInHome(strings.TrimSuffix(name, "/")); err != nil {
				return err
			}
		}
	}
	for _, path := range slices.Concat(spools, r.spec.ReadOnly) {
		if within(path, r.spec.Home) && path != r.spec.Home {
			p := preparation{home: r.spec.Home, at: unix.AT_FDCWD}
			if err := p.create(path, true, ""); err != nil {
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
	p := preparation{home: home}
	var err error
	if p.at, err = unix.Open(home, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return bare("open", home, err)
	}
	defer func() { _ = unix.Close(p.at) }()
	shell = filepath.Base(cmp.Or(shell, "bash"))
	for _, files := range created {
		if files.shell != "" && files.shell != shell {
			continue
		}
		for _, name := range files.names {
			if err := p.create(strings.TrimSuffix(name, "/"), strings.HasSuffix(name, "/"), textOf(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// preparation makes missing files in a home.
type preparation struct {
	home string
	// at is a descriptor of home: the paths below it are relative to it. With [unix.AT_FDCWD] they are absolute.
	at        int
	permitted []string // directories to which our user has all rights
}

// create makes the file or directory path in home if it is missing. It is no error if the user may not make it: a build
// may not either.
func (p *preparation) create(path string, dir bool, text string) error {
	p.permit(parent(path))
	var st unix.Stat_t
	err := unix.Fstatat(p.at, path, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	path = p.whole(path)
	err = os.MkdirAll(filepath.Dir(path), 0o700)
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

// whole returns the absolute path.
func (p *preparation) whole(path string) string {
	if p.at == unix.AT_FDCWD {
		return path
	}
	return p.home + "/" + path
}

// parent returns the directory that holds path, "" for a name alone.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

// permit gives our user all rights to the directory dir and to those on the way to it from home. A job may have taken
// them; no process could then find the files there until it gives them back.
func (p *preparation) permit(dir string) {
	if slices.Contains(p.permitted, dir) {
		return
	}
	if dir != "" && dir != p.home && (p.at != unix.AT_FDCWD || within(dir, p.home)) {
		p.permit(parent(dir))
	}
	var st unix.Stat_t
	var err error
	if dir == "" {
		err = unix.Fstat(p.at, &st)
	} else {
		err = unix.Fstatat(p.at, dir, &st, 0)
	}
	if err != nil {
		return
	}
	if st.Mode&0o700 != 0o700 {
		_ = os.Chmod(p.whole(dir), fs.FileMode(st.Mode&0o777|0o700)) // if it fails, and dir is ours, so does a freeze
	}
	p.permitted = append(p.permitted, dir)
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
	dirInHome string          // the path of dir in home; empty if it is not below home
	pinned    map[string]bool // mount points of freezeByFollowing, by path
	ways      []way           // directories that freezeDirect has pinned
	slow      bool            // freezeDirect cannot be used: an older kernel, or a filter for system calls
}

// way is a directory on the way to a file in home.
type way struct {
	path string // in home; empty for home itself
	fd   int    // of its mount; -1 if it was closed
}

// freeze makes path read-only if it exists.
func (g *guard) freeze(path string) error {
	if path != g.home && within(path, g.home) {
		if g.freezeQuickly(true, path[len(g.home)+1:]) {
			return nil
		}
	} else if g.freezeQuickly(false, path) {
		return nil
	}
	return g.freezeSlowly(path)
}

// freezeInHome makes the file of that name in home read-only if it exists.
func (g *guard) freezeInHome(name string) error {
	if g.freezeQuickly(true, name) {
		return nil
	}
	return g.freezeSlowly(g.home + "/" + name)
}

// freezeQuickly makes a file read-only by freezeDirect, and reports whether nothing is left to do.
func (g *guard) freezeQuickly(inHome bool, path string) bool {
	if g.slow {
		return false
	}
	err := g.freezeDirect(inHome, path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	g.slow = errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)
	g.close() // what follows may mount over them
	return false
}

// freezeSlowly makes path read-only, if it exists, by freezeByFollowing.
func (g *guard) freezeSlowly(path string) (err error) {
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

// maxTries bounds how often freezeSlowly begins again because a job exchanges a file and a link all the time.
const maxTries = 20

// close closes the open directories.
func (g *guard) close() {
	for i, w := range g.ways {
		if w.fd >= 0 {
			_ = unix.Close(w.fd)
			g.ways[i].fd = -1
		}
	}
}

// whole returns the absolute path of a way.
func (g *guard) whole(way string) string { return strings.TrimSuffix(g.home+"/"+way, "/") }

// isPinned reports whether the absolute path is a mount point of this guard.
func (g *guard) isPinned(path string) bool {
	return g.pinned[path] || slices.ContainsFunc(g.ways, func(w way) bool { return path == g.whole(w.path) })
}

// freezeDirect makes a path without symbolic links read-only; it is one in home if inHome is true. If a job puts a link
// in, the error is ELOOP. It is for speed alone: whatever it refuses, freezeByFollowing decides.
func (g *guard) freezeDirect(inHome bool, path string) error {
	if inHome && within(g.dirInHome, path) || !inHome && (within(g.home, path) || within(g.dir, path)) ||
		filepath.Clean(path) != path {
		return unix.EINVAL
	}
	at, name := unix.AT_FDCWD, path
	if inHome {
		var err error
		if at, err = g.pinDirect(at, g.home, ""); err != nil {
			return err
		}
		for from := 0; ; {
			i := strings.IndexByte(path[from:], '/')
			if name = path[from:]; i < 0 {
				break
			}
			if at, err = g.pinDirect(at, name[:i], path[:from+i]); err != nil {
				return err
			}
			from += i + 1
		}
	}
	mounted, err := mountOver(at, name, 0, unix.MOUNT_ATTR_RDONLY)
	if err == nil {
		_ = unix.Close(mounted)
	}
	return err
}

// pinDirect pins the directory name in the directory at, whose path in home is path. It returns its descriptor, which
// close closes.
func (g *guard) pinDirect(at int, name, path string) (int, error) {
	for i := range g.ways {
		w := &g.ways[i]
		if w.path != path {
			continue
		}
		if w.fd < 0 {
			fd, err := openDirect(at, name, unix.O_DIRECTORY)
			if err != nil {
				return -1, err
			}
			w.fd = fd
		}
		return w.fd, nil
	}
	var fd int
	var err error
	if len(g.pinned) > 0 && g.pinned[g.whole(path)] {
		fd, err = openDirect(at, name, unix.O_DIRECTORY)
	} else {
		fd, err = mountOver(at, name, unix.O_DIRECTORY, 0)
	}
	if err == nil {
		g.ways = append(g.ways, way{path, fd})
	}
	return fd, err
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
		if !ours || g.isPinned(next) || link == nil && last {
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
