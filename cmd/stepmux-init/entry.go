//go:build amd64 || arm64

package main

// entry is where the kernel starts the file of stepmux-vm. It goes on at the entry of the Go runtime of this program if
// the first argument is __init, and else at that of stepmux-vm. internal/joinelf puts the latter's address in.
func entry() //nolint:unused // the linker is told its name
