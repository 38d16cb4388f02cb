package isolate

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// Spec describes the changes of Enter. Its paths are absolute and have no symbolic links.
type Spec struct {
	Level vmconfig.Level
	// Dir is the build's private directory. It stays visible. Enter makes the build's own places below it, so they are
	// removed with it.
	Dir string
	// Base is the directory that holds the directories of all builds. The build sees only its own there. May be empty.
	Base string
	// Home is the user's home. May be empty. Login files, and the configuration of SSH, of shells and of systemd's user
	// manager are read-only there; if some are missing, empty ones are made.
	Home string
	// Shell is the user's login shell. May be empty.
	Shell string
	// ReadOnly are more files and directories that the build cannot change, such as the program. In Home, a missing one
	// is made as a directory.
	ReadOnly []string
}

// Room is where a build's processes live. It is not safe for concurrent use.
type Room struct {
	spec Spec
	dir  string // a path of spec.Dir through its descriptor, which works where that directory is hidden
	// private is the beginning of the paths of the build's own places in dir, by the same way.
	private string
	// memory is a directory in memory for own places that stay small, by its descriptor. If the machine has no /dev/shm,
	// it is empty.
	memory string
	hidden []hidden // a later entry overrides an earlier one
}

// hidden is a directory of the machine that the build does not see; it sees an own one. If was is empty, the directory
// was made visible again.
type hidden struct {
	path string
	was  string // the machine's directory, as a path through a descriptor
}

// Enter changes the mounts of this process, which must be the first one in the namespaces of spec.Level and locked to
// its thread. Then it drops the capabilities that this thread's processes could inherit. After an error the process
// must end. The caller calls Guard next.
func Enter(spec Spec) (*Room, error) {
	r := &Room{spec: spec}
	if spec.Level == vmconfig.Off {
		return r, nil
	}
	for _, step := range []func() error{r.begin, r.hideAll, r.showDir, r.home, r.showAll, r.kernel, r.sshConfig} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if err := dropCapabilities(); err != nil {
		return nil, oserr.With("give up capabilities", err)
	}
	return r, joinKeyring()
}

// joinKeyring gives this thread, and the processes that it starts, a session keyring of their own: all builds of a
// login would share that of its session. Some kernels have no keyrings, and some sandboxes forbid the call.
func joinKeyring() error {
	// Not unix.KeyctlJoinSessionKeyring, which cannot ask for one without a name: it returns EINVAL for "".
	_, _, errno := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
	switch errno {
	case 0, unix.ENOSYS, unix.EPERM, unix.EACCES:
		return nil
	case unix.EDQUOT:
		return oserr.With("make a session keyring (raise kernel.keys.maxkeys)", errno)
	default:
		return oserr.With("make a session keyring", errno)
	}
}

// dropCapabilities drops the capabilities that a process which this thread starts would inherit.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	return unix.Capset(&header, &sets[0])
}

// begin hides mounts that are made here from the machine. An unmount on the machine still takes effect here: the build
// must not keep its file systems busy.
func (r *Room) begin() error {
	if err := mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	var err error
	if r.dir, err = open(r.spec.Dir); err != nil {
		return err
	}
	// The init of an earlier room, which was killed, may have left others, in which jobs can have put links.
	r.private = r.dir + "/private-" + strconv.FormatUint(rand.Uint64(), 36)
	return nil
}

// runUser has a directory for each user with a session. It is hidden as a whole: that of our user, with the sockets of
// its services, may come with a session that begins later.
const runUser = "/run/user"

// hideAll gives the build its own temporary directories. On some file systems a new directory takes a tenth of a
// millisecond, and its removal as long; so only those are on disk that may grow large.
func (r *Room) hideAll() error {
	// First, because the base may be in it: a directory that is hidden cannot be found below one that is hidden later.
	if err := r.hideSharedMemory(); err != nil {
		return err
	}
	for _, h := range []struct {
		path string
		mode uint32
		in   string
	}{
		{"/tmp", 0o777 | unix.S_ISVTX, ""},
		{"/var/tmp", 0o777 | unix.S_ISVTX, ""},
		{runUser, 0o755, r.memory},
		{"/run/screen", 0o777 | unix.S_ISVTX, r.memory},   // sockets of terminal sessions
		{"/run/screens", 0o777 | unix.S_ISVTX, r.memory},  // the same on Arch
		{"/run/uscreens", 0o777 | unix.S_ISVTX, r.memory}, // the same on openSUSE
		{r.spec.Base, 0o700, r.memory},
	} {
		if err := r.hide(h.path, h.mode, h.in); err != nil {
			return err
		}
	}
	_ = unix.Mkdir(runUser+"/"+strconv.Itoa(os.Geteuid()), 0o700) // without runUser it fails
	return nil
}

// hideSharedMemory makes /dev/shm the build's own, and memory, which is mounted there below it.
func (r *Room) hideSharedMemory() error {
	was, path, err := openDir("/dev/shm")
	if err != nil || was == "" {
		return err
	}
	r.hidden = append(r.hidden, hidden{path, was})
	if err := mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return err
	}
	if r.memory, err = open(path); err != nil {
		return err
	}
	r.hidden = append(r.hidden, hidden{path, was})
	return r.cover(path, 0o777|unix.S_ISVTX, r.memory)
}

// hide puts an empty directory of the build in the place of path, if path is a directory that is not hidden yet. It
// makes that in the directory in, or on disk if in is empty.
func (r *Room) hide(path string, mode uint32, in string) error {
	if path == "" {
		return nil
	}
	was, path, err := openDir(path)
	if err != nil || was == "" || r.above(path) != nil {
		return err
	}
	r.hidden = append(r.hidden, hidden{path, was})
	return r.cover(path, mode, in)
}

// cover mounts a directory of own over path.
func (r *Room) cover(path string, mode uint32, in string) error {
	own, err := r.own(path, mode, in)
	if err != nil {
		return err
	}
	return mount(own, path, "", unix.MS_BIND, "")
}

// own makes the build's directory for the place of path, in the directory in or on disk, and returns its path.
func (r *Room) own(path string, mode uint32, in string) (string, error) {
	own := r.place(in, strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "-"))
	err := unix.Mkdir(own, 0o700)
	if err == nil {
		err = unix.Chmod(own, mode) // the umask may have changed it
	}
	if err != nil {
		return "", bare("make a directory in the place of", path, err)
	}
	return own, nil
}

// place returns a path for a file of that name, in the directory in or, if that is empty, on disk.
func (r *Room) place(in, name string) string {
	if in != "" {
		return in + "/" + name
	}
	return r.private + "-" + name
}

// above returns the hidden directory that is path or contains it, or nil if path is visible.
func (r *Room) above(path string) *hidden {
	for i := len(r.hidden) - 1; i >= 0; i-- {
		if h := &r.hidden[i]; within(path, h.path) {
			if h.was == "" {
				return nil
			}
			return h
		}
	}
	return nil
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	rest, below := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return dir != "" && (path == dir || below && strings.HasPrefix(rest, "/"))
}

// home gives a private build a home of its own: an overlay on the user's home or, if the machine allows no overlays, an
// empty directory.
func (r *Room) home() error {
	home := r.spec.Home
	if r.spec.Level != vmconfig.Private || home == "" || home == "/" || r.above(home) != nil {
		return nil
	}
	was, err := open(home)
	if err != nil {
		return err
	}
	own, err := r.own(home, 0o700, "")
	if err != nil {
		return err
	}
	for _, name := range []string{"/upper", "/work"} {
		if err := os.Mkdir(own+name, 0o700); err != nil {
			return bare("make a layer over", home, err)
		}
	}
	r.hidden = append(r.hidden, hidden{home, was})
	// The kernel refuses paths through descriptors here.
	layers := filepath.Join(r.spec.Dir, filepath.Base(own))
	options := "lowerdir=" + home + ",upperdir=" + layers + "/upper,workdir=" + layers + "/work"
	if os.Geteuid() != 0 {
		options += ",userxattr" // a user may not set the other attributes
	}
	if strings.ContainsAny(home+layers, `,:\`) ||
		mount("overlay", home, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options) != nil {
		return mount(own+"/upper", home, "", unix.MS_BIND, "")
	}
	return nil
}

// showDir makes the build's directory visible. If it is in a hidden home, showAll shows both.
func (r *Room) showDir() error {
	home := r.above(r.spec.Home)
	if r.spec.Level != vmconfig.Private && within(r.spec.Dir, r.spec.Home) && home != nil && home.path != r.spec.Home {
		return nil
	}
	return r.Show(r.spec.Dir)
}

// showAll makes the parts of hidden directories visible again that the build needs.
func (r *Room) showAll() error {
	show := r.spec.ReadOnly
	switch {
	case r.spec.Level != vmconfig.Private:
		show = append([]string{r.spec.Home}, show...)
	case within(r.spec.Dir, r.spec.Home): // its own home has hidden it
		show = append([]string{r.spec.Dir}, show...)
	}
	for _, path := range show {
		if err := r.Show(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Show makes the file or directory path visible if it is below a hidden directory. It refuses the files of another
// build.
func (r *Room) Show(path string) error {
	h := r.above(path)
	switch {
	case h == nil || h.path == path:
		return nil
	case within(path, r.spec.Dir) && path != r.spec.Dir:
		return nil // it is a part of the build's directory, which is visible
	case within(path, r.spec.Base) && path != r.spec.Dir:
		return errors.New(strconv.Quote(path[:min(len(path), 160)]) + " belongs to another build")
	}
	source := h.was + strings.TrimPrefix(path, h.path)
	var st unix.Stat_t
	err := unix.Stat(source, &st)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		err = mkdirAll(path)
	default:
		if err = mkdirAll(filepath.Dir(path)); err == nil {
			var fd int
			if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600); err == nil {
				err = unix.Close(fd)
			}
		}
	}
	target := ""
	if err == nil {
		target, err = open(path)
	}
	if err == nil && readlink(target) != path {
		err = unix.ELOOP // a link of a job. Without a user namespace, a mount over /etc would deceive setuid programs
	}
	if err != nil {
		return bare("show", path, err)
	}
	if err := mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	r.hidden = append(r.hidden, hidden{path: path})
	if path == r.spec.Base || !within(r.spec.Base, path) {
		return nil
	}
	// path has brought the directories of other builds into view.
	if err := r.hide(r.spec.Base, 0o700, r.memory); err != nil {
		return err
	}
	return r.showDir()
}

// Leave makes hidden directories visible again, also the machine's directory of all builds. It is for the end, when no
// process of the build is left. Where it cannot, they stay hidden.
func (r *Room) Leave() {
	for i := len(r.hidden) - 1; i >= 0; i-- {
		_ = unix.Unmount(r.hidden[i].path, unix.MNT_DETACH)
	}
	r.hidden = nil
}

// kernel makes the kernel's file systems for processes, queues, terminals and cgroups the build's own or read-only.
func (r *Room) kernel() error {
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	for _, m := range []struct{ kind, path, options string }{
		{"mqueue", "/dev/mqueue", ""},
		{"devpts", "/dev/pts", "newinstance,ptmxmode=666"}, // a terminal of a login belongs to our user
	} {
		if !isDir(m.path) {
			continue
		}
		if mount(m.kind, m.path, m.kind, unix.MS_NOSUID|unix.MS_NOEXEC, m.options) == nil {
			continue
		}
		if err := r.hide(m.path, 0o755, r.memory); err != nil { // a container may forbid such a mount
			return err
		}
	}
	const cgroups = "/sys/fs/cgroup"
	if !isDir(cgroups) {
		return nil
	}
	// The build sees its own cgroup there, as the root of all.
	var st unix.Statfs_t
	if unix.Unshare(unix.CLONE_NEWCGROUP) == nil && unix.Statfs(cgroups, &st) == nil &&
		st.Type == unix.CGROUP2_SUPER_MAGIC {
		flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY)
		if mount("cgroup2", cgroups, "cgroup2", flags, "") == nil {
			return nil
		}
	}
	return freeze(cgroups) // with version 1
}

// freeze makes the file or directory path read-only, with all mounts below it.
func freeze(path string) error {
	if err := pin(path, false); err != nil {
		return err
	}
	return at(path, func(fd int, name string) error {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
		if errors.Is(err, unix.ENOSYS) { // before Linux 5.12 only this mount can be changed, not those below it
			var st unix.Statfs_t
			if err = unix.Statfs(name, &st); err == nil {
				// The present flags are locked, so they must be repeated. ST_* and MS_* have the same values here.
				kept := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
				err = unix.Mount("", name, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|kept, "")
			}
		}
		return err
	})
}

// pin mounts a file, a directory or a symbolic link over itself. Before Linux 5.2 this does not work for links.
func pin(path string, isLink bool) error {
	return at(path, func(fd int, name string) error {
		if !isLink {
			return unix.Mount(name, name, "", unix.MS_BIND|unix.MS_REC, "")
		}
		link, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		if err == nil {
			err = unix.MoveMount(link, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
			_ = unix.Close(link)
		}
		if errors.Is(err, unix.ENOSYS) {
			return nil
		}
		return err
	})
}

// at calls do with a descriptor of path, which may be a symbolic link, and its name in /proc. A mount takes these and
// not the path, which is looked up again each time: a job of another build may put a link in its place, which
// would lead the mount to any directory.
func at(path string, do func(fd int, name string) error) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return bare("open", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	name := "/proc/self/fd/" + strconv.Itoa(fd)
	if readlink(name) != path {
		err = unix.ELOOP
	} else {
		err = do(fd, name)
	}
	if err != nil {
		return oserr.With("make "+path+" read-only", err)
	}
	return nil
}

// mount calls mount(2); its error names the target.
func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return oserr.With("mount "+target, err)
	}
	return nil
}

// open opens the file or directory and returns a path to it that lasts as long as this process.
func open(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", bare("open", path, err)
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
}

// openDir is open for a directory. real is its path without symbolic links. If there is no directory at path, was is
// empty.
func openDir(path string) (was, real string, err error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		was = "/proc/self/fd/" + strconv.Itoa(fd)
		return was, readlink(was), nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOTDIR),
		errors.Is(err, unix.ELOOP):
		return "", "", nil
	default:
		return "", "", bare("open", path, err)
	}
}

// readlink returns the target of the symbolic link at path, or "" if there is no link. os.Readlink takes more memory.
func readlink(path string) string {
	var target [unix.PathMax]byte
	n, err := unix.Readlink(path, target[:])
	if err != nil {
		return ""
	}
	return string(target[:n])
}

// mkdirAll makes the directory path and those on the way to it, if they are missing.
func mkdirAll(path string) error {
	err := unix.Mkdir(path, 0o700)
	if parent := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) && parent != path {
		if err = mkdirAll(parent); err == nil {
			err = unix.Mkdir(path, 0o700)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil // if it is no directory, nothing can be mounted there
	}
	return err
}

func isDir(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// bare returns err with path in place of a path through a descriptor.
func bare(action, path string, err error) error {
	if inner, ok := errors.AsType[*fs.PathError](err); ok {
		err = inner.Err
	}
	return oserr.With(action+" "+path, err)
}
