package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of time in /proc/PID/stat: USER_HZ, which Linux never changes.
const tick = 10 * time.Millisecond

// vmCPU returns the processor time that the VM's end has used so far: that of every sshd this process has
// started, and of all that it has started in turn (proc(5)).
func vmCPU() (time.Duration, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	children := make(map[int][]process)
	for _, path := range stats {
		if p, ok := readProcess(path); ok {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	var used time.Duration
	found := false
	for _, p := range children[os.Getpid()] {
		if p.name == "sshd" {
			found = true
			used += p.familyCPU(children)
		}
	}
	if !found {
		return 0, fmt.Errorf("read /proc: found no sshd among the children of %d", os.Getpid())
	}
	return used, nil
}

// process is what is known of a process.
type process struct {
	name        string
	pid, parent int
	cpu         time.Duration // its own, and that of children that have been waited for
}

func (p process) familyCPU(children map[int][]process) time.Duration {
	used := p.cpu
	for _, child := range children[p.pid] {
		used += child.familyCPU(children)
	}
	return used
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
	for _, field := range fields[11:15] {
		p.cpu += time.Duration(number(field)) * tick
	}
	return p, true
}
