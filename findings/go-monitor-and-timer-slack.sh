#!/usr/bin/env bash
# Go 1.26, Linux: how often the runtime's monitor thread wakes up depends on who has started the program.
#
# Guess: the monitor (sysmon) sleeps 20 us while goroutines run, in each program, and nothing but GODEBUG changes the Go
# runtime of a program that is compiled already.
# Comes: its sleep ends late by the thread's timer slack (prctl(2)), which the first thread of a program has from the
# thread that called exec. A program that makes one short system call after the other, started with a slack of 2 ms, has a
# monitor that wakes up less than half as often, also on a busy machine.
set -euo pipefail
[[ $(go version 2>/dev/null) == "go version go1.26"* ]] || { echo "skip: needs Go 1.26"; exit 77; }
[ "$(uname -s)" = Linux ] && [ -r /proc/self/timerslack_ns ] || { echo "skip: needs Linux"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
cat >main.go <<'GO'
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// wakes returns how often each thread of the process has gone to sleep.
func wakes() (most int) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		panic(err)
	}
	for _, task := range tasks {
		if task.Name() == strconv.Itoa(os.Getpid()) {
			continue // the first thread: the loop may run there
		}
		status, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		_, rest, _ := bytes.Cut(status, []byte("\nvoluntary_ctxt_switches:\t"))
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		n, _ := strconv.Atoi(string(line))
		most = max(most, n)
	}
	return most
}

func main() {
	runtime.LockOSThread()
	if len(os.Args) == 1 { // starts itself with each slack
		for _, slack := range []uintptr{50_000, 2_000_000} {
			const setSlack = 29
			if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setSlack, slack, 0); errno != 0 {
				panic(errno)
			}
			p, err := os.StartProcess("/proc/self/exe", []string{"finding", "loop"}, &os.ProcAttr{
				Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
			})
			if err != nil {
				panic(err)
			}
			p.Wait()
		}
		return
	}
	var stat syscall.Stat_t
	path, _ := syscall.BytePtrFromString("/proc/self/status")
	for begin := time.Now(); time.Since(begin) < 2*time.Second; {
		syscall.Syscall(syscall.SYS_STAT, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&stat)), 0)
	}
	fmt.Println(wakes())
}
GO
go build -o finding .
read -r -d '' usual large < <(./finding; printf '\0') || true
echo "sleeps of the busiest other thread in 2 s: $usual with the kernel's slack of 50 us, $large with 2 ms"
[ "$usual" -gt $((2 * large)) ] || { echo "expected: more than twice as many with 50 us"; exit 1; }
