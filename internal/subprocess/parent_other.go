//go:build !linux

package subprocess

import "syscall"

// attributes gives a command a process group.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
