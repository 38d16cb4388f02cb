package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of time in /proc/PID/stat: USER_HZ, which Linux never changes.
const tick = 10 * time.Millisecond

// processes are those of this machine, by parent.
type processes map[int][]process

// process describes a process of this machine.
type process struct {
	name        string
	pid, parent int
	own         time.Duration // of processors
	cpu         time.Duration // its own, and that of children that have been waited for
}

func readProcesses() (processes, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := make(processes)
	for _, path := range stats {
		if p, ok := readProcess(path); ok {
			all[p.parent] = append(all[p.parent], p)
		}
	}
	return all, nil
}

// named returns the children of this process that run the program of that name, and all that they have started in
// turn.
func (all processes) named(name string) []process {
	var found []process
	for _, p := range all[os.Getpid()] {
		if p.name == name {
			found = append(found, all.family(p)...)
		}
	}
	return found
}

// family returns p and all that it has started.
func (all processes) family(p process) []process {
	found := []process{p}
	for _, child := range all[p.pid] {
		found = append(found, all.family(child)...)
	}
	return found
}

func cpu(of []process) (used time.Duration) {
	for _, p := range of {
		used += p.cpu
	}
	return used
}

// spent is the processor time that other processes have used so far: every sshd this process has started and all that
// it has started in turn, and OpenSSH's clients (proc(5)).
type spent struct{ vm, clients time.Duration }

func readSpent() (spent, error) {
	all, err := readProcesses()
	if err != nil {
		return spent{}, err
	}
	vm := all.named("sshd")
	if len(vm) == 0 {
		return spent{}, fmt.Errorf("read /proc: found no sshd among the children of %d", os.Getpid())
	}
	return spent{cpu(vm), cpu(all.named("ssh"))}, nil
}

// vmCPU returns the processor time that the VM's end has used so far.
func vmCPU() (time.Duration, error) {
	s, err := readSpent()
	return s.vm, err
}

// ownCPU returns the processor time that this process has used so far (getrusage(2)).
func ownCPU() (time.Duration, error) {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}

// readProcess returns false for a process that has gone.
func readProcess(path string) (process, bool) {
	stat, err := os.ReadFile(path)
	if err != nil {
		return process{}, false
	}
	text := string(stat)
	// The name may hold anything.
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return process{}, false
	}
	fields := strings.Fields(text[end+1:]) // from the third field on
	if len(fields) < 15 {
		return process{}, false
	}
	number := func(field string) int {
		n, _ := strconv.Atoi(field) // the kernel's
		return n
	}
	p := process{name: text[open+1 : end], pid: number(strings.TrimSpace(text[:open])), parent: number(fields[1])}
	p.own = time.Duration(number(fields[11])+number(fields[12])) * tick
	p.cpu = p.own + time.Duration(number(fields[13])+number(fields[14]))*tick
	return p, true
}
