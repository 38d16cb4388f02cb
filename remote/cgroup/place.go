package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// ours is the cgroup that holds the groups.
	ours = "stepmux"
	// rest is the cgroup for the other processes of a delegated cgroup: only a cgroup without processes can limit the
	// cgroups below it.
	rest = "stepmux-rest"
	// userPrefix and an id name the cgroup below ours with the groups of a build user.
	userPrefix = "user-"
)

const (
	unified = "boot the VM with systemd.unified_cgroup_hierarchy=1"
	// delegate is the remedy for an ordinary user.
	delegate = "runner: systemd-run --user --scope --quiet --property Delegate=yes stepmux, or log in as root"
)

// Error says why this machine gives us no group.
type Error struct {
	Reason error
	Remedy string // how to change that; may be empty
}

// Error implements error.
func (e *Error) Error() string {
	text := "limits are not available: " + e.Reason.Error()
	if e.Remedy != "" {
		text += " (" + e.Remedy + ")"
	}
	return text
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Reason }

// Check returns an [*Error] if limits of these kinds are not available. It changes nothing.
func Check(limits vmconfig.Limits) error {
	base, err := find()
	if err != nil {
		return err
	}
	return check(base, limits)
}

func check(base string, limits vmconfig.Limits) error {
	if err := unix.Access(base, unix.W_OK); err != nil {
		return refused(base, err)
	}
	have, err := os.ReadFile(base + "/cgroup.controllers")
	if err != nil {
		return refused(base, err)
	}
	for _, name := range controllers(limits) {
		if !slices.Contains(strings.Fields(string(have)), name) {
			remedy := unified
			if os.Geteuid() != 0 {
				remedy = "Delegate=cpu memory pids for user@.service"
			}
			return &Error{fmt.Errorf("the controller %s is not in cgroup %s: it is with cgroups of version 1, or not delegated",
				name, base), remedy}
		}
	}
	return nil
}

// find returns the directory of the cgroup that we may divide. It is a variable for tests.
var find = func() (string, error) {
	mount, root, err := mountPoint()
	if err != nil || os.Geteuid() == 0 {
		return mount, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", &Error{err, ""}
	}
	for line := range strings.Lines(string(own)) {
		path, is2 := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !is2 {
			continue
		}
		if path, is2 = strings.CutPrefix(path, strings.TrimSuffix(root, "/")); !is2 {
			break
		}
		dir := filepath.Join(mount, path)
		if filepath.Base(dir) == rest {
			dir = filepath.Dir(dir)
		}
		return dir, nil
	}
	return "", &Error{errors.New("the cgroup of this process is not below " + mount), delegate}
}

// mountPoint returns where the cgroups are mounted, and which cgroup is the root there.
func mountPoint() (dir, root string, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", "", &Error{err, ""}
	}
	for line := range bytes.Lines(mounts) {
		// id parent device root point options... - type: see proc_pid_mountinfo(5).
		before, after, _ := bytes.Cut(line, []byte(" - "))
		f := strings.Fields(string(before))
		var st unix.Statfs_t // another mount may cover this one
		if len(f) > 4 && bytes.HasPrefix(after, []byte("cgroup2 ")) && unix.Statfs(f[4], &st) == nil &&
			st.Type == unix.CGROUP2_SUPER_MAGIC {
			return f[4], f[3], nil
		}
	}
	return "", "", &Error{errors.New("no cgroups of version 2 are mounted"), unified}
}

// controllers returns the names of the controllers that limits need.
func controllers(limits vmconfig.Limits) (names []string) {
	for _, c := range []struct {
		name   string
		wanted bool
	}{{"memory", limits.Memory > 0}, {"pids", limits.PIDs > 0}, {"cpu", limits.CPUs > 0}} {
		if c.wanted {
			names = append(names, c.name)
		}
	}
	return names
}

// divide makes the cgroup ours below base, and enables these controllers in both, for the cgroups below them. It
// returns the path of ours.
func divide(base string, names []string) (string, error) {
	dir := base + "/" + ours
	if err := mkdir(dir); err != nil && !errors.Is(err, unix.EEXIST) {
		return "", refused(base, err)
	}
	if len(names) == 0 {
		return dir, nil
	}
	err := enable(base, names)
	for tries := 0; errors.Is(err, unix.EBUSY) && os.Geteuid() != 0 && tries < 10; tries++ {
		if err = moveRest(base); err == nil {
			err = enable(base, names)
		}
	}
	if err == nil {
		err = enable(dir, names)
	}
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("the cgroup %s has processes of its own, as that of a container does", base)
		return "", &Error{err, "move them to a cgroup below it"}
	}
	if err != nil {
		return "", refused(base, err)
	}
	return dir, nil
}

// divideFor makes the cgroup for the groups of a user below parent, in which the user can remove groups. It returns its
// path. The cgroup stays, for later builds of the user.
func divideFor(owner int, parent string, names []string) (string, error) {
	dir := parent + "/" + userPrefix + strconv.Itoa(owner)
	err := mkdir(dir)
	if errors.Is(err, unix.EEXIST) {
		err = nil
	}
	if err == nil {
		err = errors.Join(write(dir, "cgroup.max.descendants", maxOfUser), os.Lchown(dir, owner, -1))
	}
	if err == nil && len(names) > 0 {
		err = enable(dir, names)
	}
	if err != nil {
		return "", refused(parent, err)
	}
	return dir, nil
}

// parents returns the cgroups in which there may be groups that this user can remove.
func parents() (dirs []string) {
	root := os.Geteuid() == 0
	if base, err := find(); err == nil {
		dirs = append(dirs, base+"/"+ours)
		if root {
			users, _ := filepath.Glob(base + "/" + ours + "/" + userPrefix + "*") // the pattern is valid
			return append(dirs, users...)
		}
	}
	if mount, _, err := mountPoint(); err == nil && !root {
		dirs = append(dirs, filepath.Join(mount, ours, userPrefix+strconv.Itoa(os.Geteuid())))
	}
	return dirs
}

// enable enables these controllers for the cgroups below the cgroup dir.
func enable(dir string, names []string) error {
	return write(dir, "cgroup.subtree_control", "+"+strings.Join(names, " +"))
}

// moveRest moves the processes of base, which are all ours, to a cgroup below it.
func moveRest(base string) error {
	if err := mkdir(base + "/" + rest); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	list, err := os.ReadFile(base + "/cgroup.procs")
	for pid := range strings.FieldsSeq(string(list)) {
		if moveErr := write(base+"/"+rest, "cgroup.procs", pid); !errors.Is(moveErr, unix.ESRCH) {
			err = errors.Join(err, moveErr)
		}
	}
	return err
}

// refused is the error of a system call on the cgroup base.
func refused(base string, err error) error {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return &Error{fmt.Errorf("the cgroup %s is not delegated to this user", base), delegate}
	case errors.Is(err, unix.EROFS):
		return &Error{fmt.Errorf("the cgroup %s is read-only", base), "mount the cgroups writable"}
	default:
		return &Error{fmt.Errorf("cgroup %s: %w", base, err), ""}
	}
}
