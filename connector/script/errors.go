package script

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/mux"
)

// MachineError says that the VM could not run a script or a command, or not to its end: the fault is the
// machine's or the configuration's, not the script's.
type MachineError struct {
	// Stage names the fault: "shell" (it is missing or cannot be started), "tmp" (no place for the script),
	// "tool" (a program that we need is missing), "truncated" (the script did not arrive whole), "machine",
	// or "guard" (the wrapper ended without reporting the script's end).
	Stage string
	// Text is the VM's message. It is foreign text.
	Text string
	// Hint names the change that helps, if that is known.
	Hint string
	// Err is the cause, nil if there is no other.
	Err error
}

func (e *MachineError) Error() string {
	var b strings.Builder
	b.WriteString("the VM could not run the script")
	if e.Stage == stageGuard {
		b.WriteString(", or not to its end")
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Text != "" {
		fmt.Fprintf(&b, ": %s", e.Text)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, " (%s)", e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *MachineError) Unwrap() error { return e.Err }

const stageGuard = "guard"

// machineError returns the error of a fault at a stage.
func machineError(stage, text string, err error) *MachineError {
	e := &MachineError{Stage: stage, Text: text, Err: err}
	switch stage {
	case "shell":
		e.Hint = "install the shell on the VM, or configure another"
	case "tmp":
		e.Hint = "make room in the VM's directory for temporary files, TMPDIR or /tmp, and let the login write there"
	case "tool":
		e.Hint = "install it on the VM, for example with coreutils, util-linux and grep; " +
			"or install stepmux there, which needs no other program"
	case "truncated":
		e.Hint = "the connection broke while it was sent; try again"
	case stageGuard:
		e.Hint = "was it killed, by lack of memory perhaps? Does the login run the command it is given?"
	}
	return e
}

// errStopped is the error of a process that was stopped and not seen to end.
var errStopped = errors.New("it was stopped, and was not seen to end")

// lossOf adds op to the error of a lost connection. All other errors name their subject themselves.
func lossOf(op string, err error) error {
	if mux.IsLost(err) {
		return fmt.Errorf("%s: %w", op, err)
	}
	return err
}
