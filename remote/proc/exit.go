package proc

import (
	"fmt"
	"syscall"
	"time"
)

// Exit is how a command ended.
type Exit struct {
	// Code is its exit code; if a signal killed it 128 plus the signal's number, as a shell says it.
	Code int
	// Signal is the signal that killed it, 0 if none did.
	Signal syscall.Signal
	// UserTime and SystemTime are the processor time of the command and of the processes it has waited
	// for.
	UserTime, SystemTime time.Duration
	// MaxRSS is the largest memory one of those had resident, in bytes.
	MaxRSS int64
}

// String says it as a shell does: "exit status 1", "signal: killed".
func (e Exit) String() string {
	if e.Signal != 0 {
		return "signal: " + e.Signal.String()
	}
	return fmt.Sprintf("exit status %d", e.Code)
}
