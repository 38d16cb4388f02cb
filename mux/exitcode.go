package mux

import (
	"errors"
	"strconv"

	"github.com/stepmux/stepmux/mux/relay"
)

// signalNumbers holds Linux's numbers of signals (signal(7)). SSH names some of them (RFC 4254, section 6.10), and a
// relay all of them.
var signalNumbers = map[string]int{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9,
	"USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16, "CHLD": 17,
	"CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25,
	"VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29, "PWR": 30, "SYS": 31,
}

// numberOf returns the number of a signal that a server has named, or 0. A relay names real-time signals by their
// numbers, 32 to 64.
func numberOf(name string) int {
	if n, err := strconv.Atoi(name); err == nil && n >= 32 && n <= 64 {
		return n
	}
	return signalNumbers[name]
}

// ExitCode returns the exit status of a process's error, as a shell reports it: 0 for nil, 128 plus the signal's
// number for a signal, and -1 if err has no exit status.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	exit, _ := errors.AsType[*ExitError](err)
	if exit == nil {
		return -1
	}
	switch signal := numberOf(exit.Signal); {
	case signal != 0:
		return 128 + signal
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
