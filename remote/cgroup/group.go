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

	"github.com/stepmux/stepmux/internal/limits"
)

const (
	// removeTimeout bounds the wait for processes that were killed: some cannot be.
	removeTimeout = 5 * time.Second
	// maxBelow bounds the cgroups that a build can make below its own, which it can without isolation.
	maxBelow = "1000"
	// maxOfUser bounds those that a user can make beside its builds' own, which it can without isolation.
	maxOfUser = "100000"
	// period is that of cpu.max, in microseconds.
	period = 100000
)

// sweepPatience is how long the processes of a dead program may take to end by themselves: its init removes its files.
// Variable for tests.
var sweepPatience = 3 * time.Second

// Group is a cgroup of a build. It is safe for concurrent use, but for Remove, which comes last.
type Group struct {
	dir    string
	run    *os.File // the cgroup of the processes
	limits limits.Build
}

// Make makes a group with these limits. name is unique on the machine. owner is the id of the user that the caller, who
// is root, is about to become: that user can then end and remove the group, and not change it or leave it. For any
// other caller it is 0. An [*Error] says why there can be no group.
func Make(name string, limits limits.Build, owner int) (*Group, error) {
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
		// What counts are the limits of dir. These are for programs that ask how much they may use.
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
func limit(dir string, l limits.Build) (err error) {
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

// Attributes makes the process that sys starts one of the group. The kernel puts it there before it runs.
func (g *Group) Attributes(sys *syscall.SysProcAttr) {
	sys.UseCgroupFD, sys.CgroupFD = true, int(g.run.Fd())
}

// Remove kills every process of the group, of whatever user, and removes it. It waits for their end, for at most 5 s:
// some processes cannot be killed. Before Linux 5.14 it kills nothing. It is idempotent.
//
// It is the only one to kill by the group: at least Linux 6.18 kills every process that is started straight into a
// cgroup which was killed before.
func (g *Group) Remove() error {
	g.run.Close()
	return remove(context.Background(), g.dir, 0)
}

// remove kills the processes of the cgroup dir that are still there after the patience, and removes it. It returns at
// the end of ctx, or after 5 s more.
func remove(ctx context.Context, dir string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience+removeTimeout)
	defer cancel()
	killAt := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if !time.Now().Before(killAt) {
			_ = write(dir, "cgroup.kill", "1") // the removal shows a failure
		}
		err := removeAll(dir)
		if err == nil {
			return nil
		}
		select {
		case <-time.NewTimer(pause).C:
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
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
	Peak int64         // memory in bytes, the most at once; 0 if the kernel does not tell
}

// Usage returns the usage of the processes of the group.
func (g *Group) Usage() Usage {
	peak, _ := os.ReadFile(g.dir + "/memory.peak") // since Linux 5.19, with the controller
	n, _ := strconv.ParseInt(strings.TrimSpace(string(peak)), 10, 64)
	return Usage{time.Duration(value(g.dir+"/cpu.stat", "usage_usec")) * time.Microsecond, n}
}

// Events counts how often the processes of a group have met its limits.
type Events struct{ OutOfMemory, OutOfPIDs int64 }

// Events returns the counts until now.
func (g *Group) Events() Events {
	// Before Linux 6.11 only the cgroup of the process counts a fork that failed.
	return Events{value(g.dir+"/memory.events", "oom_kill"), value(g.dir+"/run/pids.events", "max")}
}

// Since returns the limit that was met after the events before, in words, or "".
func (g *Group) Since(before Events) string {
	switch now := g.Events(); {
	case now.OutOfMemory > before.OutOfMemory:
		return "killed: out of memory (limit " + limits.FormatSize(g.limits.Memory) + ")"
	case now.OutOfPIDs > before.OutOfPIDs:
		return fmt.Sprintf("no more processes (limit %d)", g.limits.PIDs)
	default:
		return ""
	}
}

// Sweep removes the groups that dead tells to be those of dead programs. It kills the processes that do not end by
// themselves. It returns at the end of ctx at the latest. The error names the rest.
func Sweep(ctx context.Context, dead func(name string) bool) error {
	var errs []error
	for _, parent := range parents() {
		entries, _ := os.ReadDir(parent)
		for _, e := range entries {
			if e.IsDir() && ctx.Err() == nil && dead(e.Name()) {
				errs = append(errs, remove(ctx, filepath.Join(parent, e.Name()), sweepPatience))
			}
		}
	}
	return errors.Join(errs...)
}

// value returns the number after key in a file of lines, 0 if it is not there.
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
