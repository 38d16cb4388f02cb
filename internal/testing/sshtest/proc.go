package sshtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// descendants returns the children of a process and their descendants. Without a /proc it returns an empty list.
func descendants(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := make(map[int][]int)
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		if parent, ok := parentOf(child); ok {
			children[parent] = append(children[parent], child)
		}
	}
	var found []int
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		next = append(next, children[next[0]]...)
		found = append(found, children[next[0]]...)
	}
	return found
}

// parentOf reads a process's parent from /proc/PID/stat (proc(5)). The second field may hold any character between its
// parentheses.
func parentOf(pid int) (parent int, ok bool) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false // it has exited
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, err == nil
}

// Runs reports whether a process lives, other than as a zombie.
func Runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
