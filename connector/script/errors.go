package script

import (
	"fmt"

	"github.com/stepmux/stepmux/mux"
)

// MachineError reports that the VM could not run a script or command, or not to its end. The machine or the
// configuration is at fault, not the script.
type MachineError struct {
	// Stage classifies the fault: "shell" (missing, or cannot be started), "tmp" (no place for the script), "tool" (a
	// required program is missing), "truncated" (the script did not arrive completely), "machine", "isolation",
	// "limits", "login" (the login runs another program; Err wraps program.ErrNotRun), or "guard" (the wrapper ended
	// without reporting the script's end).
	Stage string
	// Text is the VM's message. It is untrusted text.
	Text string
	// Hint is the change to make, if it is known.
	Hint string
	// Err is the cause. It may be nil.
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

const (
	stageLogin = "login"
	stageGuard = "guard"
)

// hints are the changes to make, by the stage of a fault.
var hints = map[string]string{
	"shell": "install the shell on the VM, or configure another",
	"tmp":   "make room in the VM's directory for temporary files, TMPDIR or /tmp, and let the login write there",
	"tool": "install it on the VM, for example with coreutils, util-linux and grep; " +
		"or install stepmux there, which needs no other program",
	"truncated": "the connection broke while it was sent; try again",
	stageGuard:  "was it killed, by lack of memory perhaps?",
}

// machineError returns the error of a fault at a stage.
func machineError(stage, text string, err error) *MachineError {
	return &MachineError{Stage: stage, Text: text, Hint: hints[stage], Err: err}
}

// lossOf adds op to the error of a lost connection. Other errors name their subject already.
func lossOf(op string, err error) error {
	if mux.IsLost(err) {
		return fmt.Errorf("%s: %w", op, err)
	}
	return err
}
