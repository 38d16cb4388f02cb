// Package timerslack decides how late the kernel may wake the threads of a program that this one starts: their timer
// slack (prctl(2), PR_SET_TIMERSLACK), which a process has from the thread that starts it.
//
// The Go runtime of each program has a thread that looks every 20 us whether a system call takes long, and wakes
// another thread then. While a program starts builds, that is a seventh of its processor time. The runtime has no
// setting for it, but with a larger slack the thread looks later. So our programs begin with one: from their own
// entry (entry_*.s in cmd/stepmux-init), or from [Calm] if they start as inits and step runners.
package timerslack

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Slacks in nanoseconds. No other program chooses these numbers, so a command of a build never gets one of them.
const (
	// begin is the slack that our programs give themselves, unless they were started with another one than the kernel's.
	begin = 500_003
	// calm is for programs that wait for system calls and have nothing else to do then.
	calm = 2_000_003
	// kernel is the kernel's.
	kernel = 50_000
)

// Calm calls start, which starts a program of ours, on a thread with a large slack. commands is the slack that the
// commands of that program should have, in nanoseconds.
func Calm(start func(commands int) error) error {
	return with(func(int) int { return calm }, start)
}

// Plain calls start, which starts a command of a user, on a thread with the slack that commands should have.
func Plain(start func() error) error {
	return with(func(commands int) int { return commands }, func(int) error { return start() })
}

// with calls start on a thread with the slack that choose returns.
func with(choose func(commands int) int, start func(commands int) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return start(kernel)
	}
	commands := own
	if own == begin || own == calm {
		commands = kernel
	}
	if slack := choose(commands); slack != own {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) // never fails
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0) }()
	}
	return start(commands)
}
