package proc

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// ListChildren returns the pids of the children of this process, also of ended ones that were not reaped.
func ListChildren() []int {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return nil
	}
	defer dir.Close()
	tasks, _ := dir.Readdirnames(-1) // not os.ReadDir, whose sorting would make the init larger
	var list []int
	for _, task := range tasks {
		data, err := os.ReadFile("/proc/self/task/" + task + "/children")
		switch {
		case err == nil:
			for _, field := range bytes.Fields(data) {
				list = append(list, atoi(string(field)))
			}
		case errors.Is(err, fs.ErrNotExist):
			if _, err := os.Stat("/proc/self/task/" + task); err == nil {
				return scanChildren() // a kernel without CONFIG_PROC_CHILDREN
			}
		}
	}
	return list
}

// scanChildren does the same as ListChildren without the kernel's list: it looks at every process.
func scanChildren() []int {
	all, _ := List() // without /proc the list is empty
	var list []int
	for _, p := range all {
		if p.Parent == os.Getpid() {
			list = append(list, p.PID)
		}
	}
	return list
}

// atoi returns the number in s, or 0 if s is not a number.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
