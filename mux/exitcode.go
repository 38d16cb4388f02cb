package mux

import (
	"errors"
	"syscall"

	"github.com/stepmux/stepmux/mux/relay"
)

// signalNumbers holds Linux's numbers of the signals that SSH names (RFC 4254, section 6.10).
var signalNumbers = map[string]syscall.Signal{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9,
	"USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
}

// ExitCode returns the exit status in a process's error as a shell counts: 0 for nil, 128 plus the signal's number
// for a signal, and -1 if err holds no exit status.
func ExitCode(err error) int {
	exit := (*ExitError)(nil)
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return -1
	case exit.Signal != "":
		if n, ok := signalNumbers[exit.Signal]; ok {
			return 128 + int(n)
		}
		return -1
	case exit.Status == 0:
		return -1
	default:
		return exit.Status
	}
}

// IsLost reports whether err says that the connection or the relay was lost, so that the fate of the operation is
// unknown.
func IsLost(err error) bool {
	var (
		conn *ConnError
		gone *relay.Error
	)
	return errors.As(err, &conn) || errors.As(err, &gone)
}
