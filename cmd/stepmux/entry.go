//go:build linux && (amd64 || arm64)

package main

// programEntry is where the kernel starts a stepmux that was built with make. It goes on at the entry of the Go runtime, with a
// timer slack (internal/timerslack) that the runtime's first threads have from it.
func programEntry() //nolint:unused // the linker is told its name
