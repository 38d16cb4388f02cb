package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// removeTimeout bounds the wait for killed processes: the kernel may be unable to end one.
	removeTimeout = 5 * time.Second
	// maxBelow bounds the cgroups below a build's own. Without isolation a build can make some.
	maxBelow = "1000"
	// maxOfUser bounds the cgroups of a user beside those of its builds. Without isolation a build can make some.
	maxOfUser = "100000"
	// period is the period in cpu.max, in microseconds.
	period = 100000
)

// sweepGrace is how long the processes of a dead program may take to end by themselves: its init removes its files. It
// is a variable for tests.
var sweepGrace = 3 * time.Second

// Group is a cgroup of a build. It is safe for concurrent use, except for Remove, which comes last.
type Group struct {
	dir    string
	run    *os.File // the cgroup of the processes
	limits vmconfig.Limits
}

// Make makes a group with these limits. name must be unique on the machine. If root is about to become another user,
// owner is that user's id, otherwise 0: the owner can end and remove the group, but cannot change or leave it. An
// [*Error] says why there can be no group.
func Make(name string, limits vmconfig.Limits, owner int) (*Group, error) {
	base, err := find()
	if err == nil {
		err = check(base, limits)
	}
	if err != nil {
		return nil, err
	}
	parent, err := divide(base, controllers(limits))
	if err == nil && owner != 0 {
		parent, err = divideFor(owner, parent, controllers(limits))
	}
	if err != nil {
		return nil, err
	}
	g := &Group{dir: filepath.Join(parent, name), limits: limits}
	err = mkdir(g.dir)
	if err == nil {
		err = errors.Join(write(g.dir, "cgroup.max.descendants", maxBelow), limit(g.dir, limits))
	}
	if err == nil {
		err = mkdir(g.dir + "/run")
	}
	if names := controllers(limits); err == nil && len(names) > 0 {
		// The kernel enforces the limits of dir. These are for programs that ask how much they may use.
		err = errors.Join(enable(g.dir, names), limit(g.dir+"/run", limits))
	}
	if err == nil && owner != 0 {
		err = errors.Join(os.Lchown(g.dir, owner, -1), os.Lchown(g.dir+"/cgroup.kill", owner, -1))
	}
	if err == nil {
		g.run, err = os.OpenFile(g.dir+"/run", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		_ = removeAll(g.dir) // it has no processes
		return nil, refused(base, err)
	}
	return g, nil
}

// limit sets the limits of the cgroup dir.
func limit(dir string, l vmconfig.Limits) (err error) {
	if l.Memory > 0 {
		swap := write(dir, "memory.swap.max", "0")
		if errors.Is(swap, unix.ENOENT) {
			swap = nil // a kernel that does not count swap
		}
		err = errors.Join(err, swap, write(dir, "memory.max", strconv.FormatInt(l.Memory, 10)))
	}
	if l.PIDs > 0 {
		err = errors.Join(err, write(dir, "pids.max", strconv.FormatInt(l.PIDs, 10)))
	}
	if l.CPUs > 0 {
		err = errors.Join(err, write(dir, "cpu.max", fmt.Sprintf("%d %d", int64(l.CPUs*period), period)))
	}
	return err
}

// Attributes makes sys start a process in the group. The kernel puts it there before it runs.
func (g *Group) Attributes(sys *syscall.SysProcAttr) {
	sys.UseCgroupFD, sys.CgroupFD = true, int(g.run.Fd())
}

// Remove kills every process of the group, of any user, and removes it. It waits for their end, for at most 5 s: some
// processes cannot be killed. Before Linux 5.14 it kills nothing. It is idempotent.
//
// No other function kills a whole group: at least Linux 6.18 kills every process that is started directly in a cgroup
// which was killed before.
func (g *Group) Remove() error {
	g.run.Close()
	return remove(context.Background(), g.dir, 0)
}

// remove removes the cgroup dir. It kills the processes that are still there after the grace. It returns at the end of
// ctx, or after 5 s more.
func remove(ctx context.Context, dir string, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+removeTimeout)
	defer cancel()
	killAt := time.Now().Add(grace)
	var err error
	_ = pause.Until(ctx, func() (bool, error) {
		if !time.Now().Before(killAt) {
			_ = write(dir, "cgroup.kill", "1") // if it fails, so does the removal
		}
		err = removeAll(dir)
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

// removeAll removes a cgroup with those below it. None of them may have a process.
func removeAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeAll(filepath.Join(dir, e.Name())))
		}
	}
	if err == nil {
		if err = rmdir(dir); errors.Is(err, unix.ENOENT) {
			err = nil
		}
	}
	return err
}

// Usage is the time and memory that the processes of a group have used so far.
type Usage struct {
	CPU  time.Duration // user and system
	Peak int64         // the largest memory at one time, in bytes; 0 if the kernel does not report it
}

// Usage returns the usage of the processes of the group.
func (g *Group) Usage() Usage {
	peak, _ := os.ReadFile(g.dir + "/memory.peak") // since Linux 5.19, with the controller
	n, _ := strconv.ParseInt(strings.TrimSpace(string(peak)), 10, 64)
	return Usage{time.Duration(value(g.dir+"/cpu.stat", "usage_usec")) * time.Microsecond, n}
}

// Events counts how often the processes of a group have reached its limits.
type Events struct{ OutOfMemory, OutOfPIDs int64 }

// Events returns the counts until now.
func (g *Group) Events() Events {
	// Before Linux 6.11 a failed fork is counted only in the cgroup of the process.
	return Events{value(g.dir+"/memory.events", "oom_kill"), value(g.dir+"/run/pids.events", "max")}
}

// Since returns the limit that was reached since before, in words, or "".
func (g *Group) Since(before Events) string {
	switch now := g.Events(); {
	case now.OutOfMemory > before.OutOfMemory:
		return "killed: out of memory (limit " + vmconfig.FormatSize(g.limits.Memory) + ")"
	case now.OutOfPIDs > before.OutOfPIDs:
		return fmt.Sprintf("no more processes (limit %d)", g.limits.PIDs)
	default:
		return ""
	}
}

// Sweep removes the groups for which dead is true. It kills processes that do not end by themselves. It returns at the
// end of ctx at the latest. The error names the groups that are left.
func Sweep(ctx context.Context, dead func(name string) bool) error {
	var errs []error
	for _, parent := range parents() {
		entries, _ := os.ReadDir(parent)
		for _, e := range entries {
			if e.IsDir() && ctx.Err() == nil && dead(e.Name()) {
				errs = append(errs, remove(ctx, filepath.Join(parent, e.Name()), sweepGrace))
			}
		}
	}
	return errors.Join(errs...)
}

// value returns the number after key in a file of lines, or 0 if key is missing.
func value(file, key string) int64 {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if name, number, _ := strings.Cut(strings.TrimSpace(line), " "); name == key {
			n, _ := strconv.ParseInt(number, 10, 64)
			return n
		}
	}
	return 0
}

// write writes to a file of the cgroup dir.
func write(dir, file, text string) error {
	f, err := os.OpenFile(dir+"/"+file, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	return err
}

// Variables for tests with plain directories.
var (
	mkdir = func(dir string) error { return os.Mkdir(dir, 0o755) }
	rmdir = unix.Rmdir
)
