package subprocess

import "syscall"

// attributes gives a command a process group. The kernel kills the command when this process is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
