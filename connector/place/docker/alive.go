package docker

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// thisProcess names this process, as no other process of any machine is named. It is empty if /proc does not tell.
var thisProcess = sync.OnceValue(func() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	start, state := startOf(os.Getpid())
	if state == "" {
		return ""
	}
	return fmt.Sprintf("%s %s %d %s", strings.TrimSpace(string(boot)), space, os.Getpid(), start)
})

// isDead reports whether the process of that name, as of thisProcess, has ended. It is false if that cannot be told, as
// for one of another machine.
func isDead(name string) bool {
	mine, its := strings.Fields(thisProcess()), strings.Fields(name)
	if len(mine) != 4 || len(its) != 4 || its[0] != mine[0] || its[1] != mine[1] {
		return false
	}
	pid, err := strconv.Atoi(its[2])
	if err != nil || pid <= 0 {
		return false
	}
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	start, state := startOf(pid) // without a state it is hidden from us
	return state == "Z" || state != "" && start != its[3]
}

// startOf returns when a process started, in ticks since the machine did, and its state. Both are empty if /proc does
// not tell.
func startOf(pid int) (start, state string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", ""
	}
	after := text[strings.LastIndexByte(string(text), ')')+1:] // the name before may have any characters in it
	fields := strings.Fields(string(after))
	if len(fields) < 20 {
		return "", ""
	}
	return fields[19], fields[0]
}
