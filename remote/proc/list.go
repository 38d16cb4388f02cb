package proc

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// ListChildren returns the pids of the children of this process, also of those that have ended and were not reaped.
func ListChildren() []int {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	var list []int
	for _, task := range tasks {
		data, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		switch {
		case err == nil:
			for _, field := range bytes.Fields(data) {
				list = append(list, atoi(string(field)))
			}
		case errors.Is(err, fs.ErrNotExist):
			if _, err := os.Stat("/proc/self/task/" + task.Name()); err == nil {
				return scanChildren() // a kernel without CONFIG_PROC_CHILDREN
			}
		}
	}
	return list
}

// scanChildren is ListChildren without the kernel's list: it looks at every process.
func scanChildren() []int {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	self := strconv.Itoa(os.Getpid())
	var list []int
	for _, process := range processes {
		pid := atoi(process.Name())
		if pid == 0 {
			continue
		}
		stat, err := os.ReadFile("/proc/" + process.Name() + "/stat")
		if err != nil {
			continue // it has just ended
		}
		// pid (any name) state parent ...: see proc_pid_stat(5).
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == self {
			list = append(list, pid)
		}
	}
	return list
}

// atoi returns the number in s, 0 if s is not a number.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
