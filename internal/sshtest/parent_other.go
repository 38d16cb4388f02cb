//go:build !linux

package sshtest

import "syscall"

// dieWithParent does nothing where the kernel has no means for it.
func dieWithParent() *syscall.SysProcAttr { return nil }
