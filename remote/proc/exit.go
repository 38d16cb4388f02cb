package proc

import (
	"fmt"
	"syscall"
	"time"
)

// Exit is how a command ended.
type Exit struct {
	// Code is its exit code or, if a signal killed it, 128 plus the signal's number, as in a shell.
	Code int
	// Signal is the signal that killed it, else 0.
	Signal syscall.Signal
	// UserTime and SystemTime are the processor time of the command and of the processes that it has waited for.
	UserTime, SystemTime time.Duration
	// MaxRSS is the largest resident memory of one of those processes, in bytes.
	MaxRSS int64
	// Limit is the limit of the [Init] that was met while the command ran, if that failed: "killed: out of memory (limit
	// 512 MiB)". Else it is empty. It may have been met by another command of the Init.
	Limit string
}

// String returns a shell's words, "exit status 1" or "signal: killed", or the Limit.
func (e Exit) String() string {
	if e.Limit != "" {
		return e.Limit
	}
	if e.Signal != 0 {
		return "signal: " + e.Signal.String()
	}
	return fmt.Sprintf("exit status %d", e.Code)
}
