package mux

import (
	"errors"

	"github.com/stepmux/stepmux/mux/relay"
)

// signalNumbers holds Linux's numbers of the signals that SSH names (RFC 4254, section 6.10).
var signalNumbers = map[string]int{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9,
	"USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
}

// ExitCode returns the exit status of a process's error, as a shell reports it: 0 for nil, 128 plus the signal's
// number for a signal, and -1 if err has no exit status.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	exit, _ := errors.AsType[*ExitError](err)
	switch {
	case exit == nil:
		return -1
	case signalNumbers[exit.Signal] != 0:
		return 128 + signalNumbers[exit.Signal]
	case exit.Signal != "" || exit.Status == 0:
		return -1
	default:
		return exit.Status
	}
}

// IsLost reports whether err means that the connection or the relay was lost, so that the outcome of the operation is
// unknown.
func IsLost(err error) bool {
	_, conn := errors.AsType[*ConnError](err)
	_, gone := errors.AsType[*relay.Error](err)
	return conn || gone
}
