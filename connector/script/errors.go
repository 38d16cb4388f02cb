package script

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/mux"
)

// MachineError says that the VM could not run a script or a command, or not to its end: the fault is the
// machine's or the configuration's, not the script's.
type MachineError struct {
	// Stage names the fault: "shell" (it is missing or cannot be started), "tmp" (no place for the script),
	// "tool" (a program that we need is missing), "truncated" (the script did not arrive whole), "machine", "isolation",
	// "limits", or "guard" (the wrapper ended without reporting the script's end).
	Stage string
	// Text is the VM's message. It is foreign text.
	Text string
	// Hint names the change that helps, if that is known.
	Hint string
	// Err is the cause, nil if there is no other.
	Err error
}

func (e *MachineError) Error() string {
	text := "the VM could not run the script"
	if e.Stage == stageGuard {
		text += ", or not to its end"
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

// Unwrap returns the cause.
func (e *MachineError) Unwrap() error { return e.Err }

const stageGuard = "guard"

// hints names the change that helps, by the stage of a fault.
var hints = map[string]string{
	"shell": "install the shell on the VM, or configure another",
	"tmp":   "make room in the VM's directory for temporary files, TMPDIR or /tmp, and let the login write there",
	"tool": "install it on the VM, for example with coreutils, util-linux and grep; " +
		"or install stepmux there, which needs no other program",
	"truncated": "the connection broke while it was sent; try again",
	stageGuard:  "was it killed, by lack of memory perhaps? Does the login run the command it is given?",
}

// machineError returns the error of a fault at a stage.
func machineError(stage, text string, err error) *MachineError {
	return &MachineError{Stage: stage, Text: text, Hint: hints[stage], Err: err}
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
