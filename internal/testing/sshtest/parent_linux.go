package sshtest

import "syscall"

// dieWithParent makes the kernel kill the daemon when a test binary ends without its cleanups, as it
// does after a panic or a timeout.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
