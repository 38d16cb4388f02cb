package faults

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// process is a process of the machine, from /proc (proc(5)).
type process struct {
	pid, parent int
	state       string // Z for a zombie
	args        []string
}

// is reports whether it is a part of the VM's end: serve, proxy, relay or init.
func (p *process) is(part string) bool {
	if part == "init" {
		return len(p.args) == 3 && p.args[1] == "__init"
	}
	if len(p.args) < 3 || p.args[1] != "steps" || p.args[2] != part {
		return false
	}
	return p.args[0] == "/proc/self/exe" || strings.HasPrefix(filepath.Base(p.args[0]), "stepmux")
}

// String shows it as ps does.
func (p *process) String() string {
	return strconv.Itoa(p.pid) + " (" + p.state + ", of " + strconv.Itoa(p.parent) + ") " + strings.Join(p.args, " ")
}

// processes returns all there are.
func processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

func readProcess(pid int) (process, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, false // it has ended
	}
	// The second field may hold anything between parentheses.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	return process{
		pid: pid, parent: parent, state: fields[0],
		args: strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"),
	}, true
}

// below returns those of all that descend from a process.
func below(all []process, pid int) []process {
	children := map[int][]process{}
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
	}
	var found []process
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			found = append(found, p)
			next = append(next, p.pid)
		}
	}
	return found
}

// openFiles counts the open files of this process by name.
func openFiles() map[string]int {
	open := map[string]int{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil {
			continue // the directory itself
		}
		if kind, _, ok := strings.Cut(to, ":["); ok {
			to = kind // socket, pipe, anon_inode
		}
		open[to]++
	}
	return open
}
