package channel

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/pause"
)

// ProcessTransport is the Transport of a Process.
type ProcessTransport interface {
	Transport
	// Exited returns a channel that is closed once Err is known and all of stderr has been delivered.
	Exited() <-chan struct{}
	// Err returns how the process ended, as Process.Wait does. It is called once Exited is closed.
	Err() error
	// Signal sends a signal, named without "SIG".
	Signal(name string) error
}

// Process is a process on the VM. As a [Stream] it writes to the process's stdin and reads its stdout; CloseWrite ends
// its stdin.
//
// Close of a process in an SSH session closes the channel: the process sees the end of its stdin, and writes to its
// stdout fail. It is not killed, as SSH has no request for that: a process that must end with its channel watches its
// stdin. Close of a relay's process ends it: SIGTERM to its process group, a grace, SIGKILL.
type Process struct {
	*Stream
	transport ProcessTransport
}

// NewProcess returns a Process that owns t and was started by cmd. local is this end's address.
func NewProcess(t ProcessTransport, local Addr, cmd Command) *Process {
	return &Process{Stream: NewStream(t, local, Addr{"exec", cmd.name()}), transport: t}
}

// Wait waits until the process has ended, its channel is closed and all of stderr is delivered. It returns nil for
// exit status 0, an [*ExitError] for any other end, a *mux.ConnError or *relay.Error if the connection or the relay
// was lost before the end was known, and ctx's cause if ctx ends first (the process goes on). It may be called again,
// and by several goroutines. Stdout that is not read may block the process.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.Exited():
		return p.Err()
	case <-ctx.Done():
		return fmt.Errorf("wait for remote process: %w", context.Cause(ctx))
	}
}

// Exited returns a channel that is closed once Wait would return.
func (p *Process) Exited() <-chan struct{} { return p.transport.Exited() }

// Err returns the result of Wait once Exited is closed, and nil before.
func (p *Process) Err() error {
	if !pause.Done(p.Exited()) {
		return nil
	}
	return p.transport.Err()
}

// Signal sends a signal, named without "SIG" as in "TERM" (RFC 4254, section 6.9). It is an error if SSH has no such
// signal. A relay sends it to the process's group. In a session the server sends it, and OpenSSH ignores it for root
// logins without an error: do not rely on it.
func (p *Process) Signal(name string) error {
	if !slices.Contains(signals, name) {
		return fmt.Errorf("signal %.32q: SSH has only these, without SIG: %s", name, strings.Join(signals, ", "))
	}
	return p.transport.Signal(name)
}

// signals are those of RFC 4254, section 6.10. The other end ignores any other.
var signals = []string{
	"ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2",
}

// ExitError reports that a remote process ended with anything but status 0. It has a non-zero Status, or a Signal, or
// neither if the server closed the channel without saying how the process ended.
type ExitError struct {
	// Status is the exit status, 1 to 255 from a POSIX system.
	Status int
	// Signal is the signal's name without "SIG" (RFC 4254, section 6.10), empty if there was no signal.
	Signal string
	// Message is the server's text about a signal. It is untrusted, and may hold control characters.
	Message string
}

func (e *ExitError) Error() string {
	switch {
	case e.Signal != "":
		return "remote process ended by signal " + e.Signal
	case e.Status != 0:
		return fmt.Sprintf("remote process: exit status %d", e.Status)
	default:
		return "remote process ended without an exit status"
	}
}
