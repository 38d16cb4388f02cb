//go:build !linux

package sshtest

import "syscall"

// dieWithParent does nothing: only Linux can do it.
func dieWithParent() *syscall.SysProcAttr { return nil }
