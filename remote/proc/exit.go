package proc

import (
	"fmt"
	"syscall"
	"time"
)

// Exit is how a command ended.
type Exit struct {
	// Code is the command's exit code or, if a signal killed it, 128 plus the signal's number, as in a shell.
	Code int
	// Signal is the signal that killed it, else 0.
	Signal syscall.Signal
	// UserTime and SystemTime are the processor time of the command and of the processes that it has waited for.
	UserTime, SystemTime time.Duration
	// MaxRSS is the largest resident memory of one of those processes, in bytes.
	MaxRSS int64
	// Limit is the limit of the [Init] that was reached while the command ran, if the command failed: "killed: out of
	// memory (limit 512 MiB)". Otherwise it is empty. Another command of the Init may have reached it.
	Limit string
}

// String returns the Limit or, like a shell, "exit status 1" or "signal: killed".
func (e Exit) String() string {
	if e.Limit != "" {
		return e.Limit
	}
	if e.Signal != 0 {
		return "signal: " + e.Signal.String()
	}
	return fmt.Sprintf("exit status %d", e.Code)
}
