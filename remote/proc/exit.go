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
}

// String returns a shell's words: "exit status 1", "signal: killed".
func (e Exit) String() string {
	if e.Signal != 0 {
		return "signal: " + e.Signal.String()
	}
	return fmt.Sprintf("exit status %d", e.Code)
}
