// Package builduser makes a step runner that root has started run as another user, before it does anything for its
// build.
//
// [Take] chooses the user of one build, and keeps an id of a range from other builds while the [User] is open.
// [User.Become] makes the whole process that user, without any right of root. So no file that a build can replace is
// ever opened as root. The caller closes the User when no process of the build is left.
package builduser

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// idsDir is where the ids in use are locked. passwdFile and groupFile have the machine's users and groups. Tests change
// them.
var idsDir, passwdFile, groupFile = "/run/stepmux", "/etc/passwd", "/etc/group"

// User is the user of one build. It is not safe for concurrent use.
type User struct {
	id, group   int
	groups      []int
	name, shell string
	home        string   // empty if the user is not in passwdFile
	lock        *os.File // locks an id of a range, else nil
}

// Take returns the user that spec names (see [vmconfig.ParseUser]), or nil if spec is empty. From a range it takes an
// id that no other build has, and keeps it until Close. The caller must be root.
func Take(spec string) (*User, error) {
	if spec == "" {
		return nil, nil
	}
	name, first, last, err := vmconfig.ParseUser(spec)
	if err != nil {
		return nil, fmt.Errorf("build user %w", err)
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("build user %s: only root can run builds as another user, and the login is user %d "+
			"(leave out --build-user, or log in as root)", spec, os.Geteuid())
	}
	if name != "" {
		return takeName(name)
	}
	for id := first; id <= last; id++ {
		lock, err := takeID(id)
		if errors.Is(err, filelock.ErrTaken) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("build user %s: take id %d: %w", spec, id, err)
		}
		u, err := lookup("", id)
		if err == nil && u != nil && u.group == 0 {
			err = fmt.Errorf("the user %s of this id is in root's group: builds would have root's rights; "+
				"choose other ids", u.name)
		}
		if err != nil {
			lock.Close()
			return nil, fmt.Errorf("build user %s: id %d: %w", spec, id, err)
		}
		if u == nil {
			u = &User{id: id, group: id, name: strconv.Itoa(id), shell: "/bin/sh"}
		}
		u.lock = lock
		return u, nil
	}
	return nil, fmt.Errorf("build user %s: each id of the range is in use by a build: "+
		"make the range as long as the VM has slots", spec)
}

// takeName returns the user of that name.
func takeName(name string) (*User, error) {
	u, err := lookup(name, 0)
	switch {
	case err != nil:
		return nil, err
	case u == nil:
		return nil, fmt.Errorf("build user %s: this machine has no such user in %s", name, passwdFile)
	case u.id == 0 || u.group == 0:
		return nil, fmt.Errorf("build user %s is root, or in its group: "+
			"builds would have root's rights; choose another user", name)
	}
	return u, nil
}

// IDs returns the ids of the users that spec allows, or our own id if spec is empty.
func IDs(spec string) (ids []int) {
	name, first, last, err := vmconfig.ParseUser(spec)
	switch {
	case spec == "":
		return []int{os.Geteuid()}
	case err != nil:
	case name != "":
		if u, _ := lookup(name, 0); u != nil {
			ids = append(ids, u.id)
		}
	default:
		for id := first; id <= last; id++ {
			ids = append(ids, id)
		}
	}
	return ids
}

// takeID locks an id. The error is filelock.ErrTaken if another build has it. The lock files stay: there is one for
// each id.
func takeID(id int) (*os.File, error) {
	if err := os.Mkdir(idsDir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(idsDir, strconv.Itoa(id)), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.Try(lock); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// lookup returns the user with the name, or with the id if the name is empty. It returns nil if the machine has no such
// user.
func lookup(name string, id int) (*User, error) {
	users, err := fields(passwdFile, 7)
	if err != nil {
		return nil, err
	}
	for _, f := range users {
		uid, uidErr := strconv.ParseUint(f[2], 10, 31)
		gid, gidErr := strconv.ParseUint(f[3], 10, 31)
		if uidErr != nil || gidErr != nil || f[0] != name && (name != "" || int(uid) != id) {
			continue
		}
		u := &User{id: int(uid), group: int(gid), name: f[0], home: filepath.Clean(f[5]), shell: f[6]}
		return u, u.addGroups()
	}
	return nil, nil
}

// addGroups adds the groups that have the user as a member.
func (u *User) addGroups() error {
	groups, err := fields(groupFile, 4)
	if err != nil {
		return err
	}
	for _, f := range groups {
		gid, err := strconv.ParseUint(f[2], 10, 31)
		for member := range strings.SplitSeq(f[3], ",") {
			if err == nil && member == u.name && gid != 0 {
				u.groups = append(u.groups, int(gid))
			}
		}
	}
	return nil
}

// fields returns the lines of a file that have n fields.
func fields(file string, n int) (list [][]string, err error) {
	text, err := os.ReadFile(file)
	for line := range bytes.Lines(text) {
		if f := strings.Split(strings.TrimRight(string(line), "\n"), ":"); len(f) == n {
			list = append(list, f)
		}
	}
	return list, err
}

// Credential returns the credential for starting a process of the user.
func (u *User) Credential() *syscall.Credential {
	c := &syscall.Credential{Uid: uint32(u.id), Gid: uint32(u.group)}
	for _, g := range u.groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

// Become makes this process the user, for good, with the environment of a login of the user. It removes the variables
// of root's login that point to root's files and services. Its directory is the user's home, or / if the user has none;
// then UseHome makes one. After an error the process must end.
func (u *User) Become() error {
	if err := become(u.id, u.group, u.groups); err != nil {
		return fmt.Errorf("become build user %s: %w", u.name, err)
	}
	for _, name := range rootVars {
		_ = os.Unsetenv(name) // Unsetenv and Setenv fail only for a malformed name
	}
	for name, value := range map[string]string{"USER": u.name, "LOGNAME": u.name, "SHELL": u.shell} {
		_ = os.Setenv(name, value)
	}
	dir, home := u.home, u.home
	if home == "" {
		dir, home = "/", "/nonexistent" // until UseHome
	}
	_ = os.Setenv("HOME", home)
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("become build user %s: enter the home: %w (make it, with owner %s)", u.name, err, u.name)
	}
	if err := executable(); err != nil {
		return fmt.Errorf("become build user %s: %w", u.name, err)
	}
	return nil
}

// EndOthers kills all processes of a user whose id came from a range, and clears the user's keyrings: an earlier build
// may have left both. The caller is still root. It does nothing for a user in passwdFile, who may have processes and
// keys that are no builds'.
func (u *User) EndOthers() error {
	if u.lock == nil || u.home != "" {
		return nil
	}
	err := as(u.id, func() error {
		err := unix.Kill(-1, unix.SIGKILL)
		clearKeys()
		return err
	})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end earlier processes of user %d: %w", u.id, err)
	}
	return nil
}

// clearKeys clears the keyrings of this thread's user, which the kernel keeps when no process of the user is left. It
// ignores errors: some kernels have no keys, or no persistent ones.
func clearKeys() {
	rings := []int{unix.KEY_SPEC_USER_KEYRING, unix.KEY_SPEC_USER_SESSION_KEYRING}
	persistent, err := unix.KeyctlInt(unix.KEYCTL_GET_PERSISTENT, -1, unix.KEY_SPEC_THREAD_KEYRING, 0, 0)
	if err == nil {
		rings = append(rings, persistent, unix.KEY_SPEC_THREAD_KEYRING)
	}
	for _, ring := range rings {
		_, _ = unix.KeyctlInt(unix.KEYCTL_CLEAR, ring, 0, 0, 0)
	}
}

// as calls do in a thread that may send signals with the user's rights only. The user's processes cannot look into that
// thread, because its saved id is root's.
func as(id int, do func() error) error {
	runtime.LockOSThread()
	set := func(real, effective int) error {
		// Not syscall.Setresuid, which changes all threads.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(real), uintptr(effective), 0); errno != 0 {
			return errno
		}
		return nil
	}
	if err := set(id, id); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err := do()
	if back := set(0, 0); back != nil {
		panic("BUG: a thread cannot become root again: " + back.Error())
	}
	runtime.UnlockOSThread()
	// A change of ids resets PR_SET_DUMPABLE to the system's default.
	return errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// become gives this process these ids, and checks that no right of root is left.
func become(id, group int, groups []int) error {
	err := errors.Join(syscall.Setgroups(groups), syscall.Setresgid(group, group, group), syscall.Setresuid(id, id, id))
	if err == nil && syscall.Setuid(0) == nil {
		err = errors.New("the process is still root")
	}
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // a change of ids resets it
}

// rootVars are the variables of root's login that are wrong for another user.
var rootVars = []string{
	"XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_SESSION_ID",
	"DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "MAIL", "SUDO_USER", "SUDO_UID", "SUDO_GID", "SUDO_COMMAND",
}

// executable returns an error unless this user can start this program.
func executable() error {
	program, err := os.Executable()
	if err == nil {
		err = unix.Access(program, unix.X_OK)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w (install it where every user can start it, such as /usr/local/bin)", program,
			oserr.Bare(err))
	}
	return nil
}

// UseHome makes the home dir/home for a user that is not in passwdFile. dir is the build's directory, and the home is
// removed with it. It does nothing for a nil User.
func (u *User) UseHome(dir string) error {
	if u == nil || u.home != "" {
		return nil
	}
	home := filepath.Join(dir, "home")
	err := os.Mkdir(home, 0o700)
	if err == nil {
		err = os.Chdir(home)
	}
	if err != nil {
		return fmt.Errorf("make a home for build user %s: %w", u.name, err)
	}
	_ = os.Setenv("HOME", home)
	return nil
}

// Lock returns the file whose lock keeps the id from other builds, as long as this process or another one has it open.
// It is nil if the id does not come from a range.
func (u *User) Lock() *os.File { return u.lock }

// Close gives the id back. It is idempotent, and does nothing for a nil User. If the process is killed, the kernel
// releases the id.
func (u *User) Close() {
	if u != nil && u.lock != nil {
		u.lock.Close()
	}
}

// BecomeOwner makes a process of root the owner of the file at path, so that it uses the file with that user's rights
// only. If the file belongs to root or does not exist, BecomeOwner does nothing.
func BecomeOwner(path string) error {
	var st unix.Stat_t
	if os.Geteuid() != 0 || unix.Lstat(path, &st) != nil || st.Uid == 0 {
		return nil //nolint:nilerr // the caller finds out why the file cannot be used
	}
	if err := become(int(st.Uid), int(st.Gid), nil); err != nil {
		return fmt.Errorf("become user %d, who has %s: %w", st.Uid, path, err)
	}
	return nil
}
