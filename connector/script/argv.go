package script

import (
	"slices"
	"strconv"
	"time"
)

// Every command of this package for a VM is built here as an argument vector; mux quotes it for a login shell. No
// variable of a job is ever part of one.

// helperArgv runs a shell for a script of n bytes that follows on stdin, by the relay's own program: only a relay may
// start it. So the two are of one version, wherever the program is installed.
func helperArgv(shell []string, n int, grace time.Duration) []string {
	return slices.Concat([]string{
		"/proc/self/exe", "steps", "script", "--bytes", strconv.Itoa(n), "--grace", grace.String(), "--",
	}, shell)
}

// scriptArgv is helperArgv for a machine without a stepmux. mark is the word that finds the script's processes.
func scriptArgv(shell []string, n int, grace time.Duration, mark string) []string {
	size := strconv.Itoa(n)
	return slices.Concat([]string{"sh", "-c", scriptWrapper, "stepmux-script", size, tenths(grace), mark}, shell)
}

// lineArgv runs a command line by the login shell, on a machine without a stepmux. stdin follows, raw or, if framed,
// in pieces with their lengths.
func lineArgv(line string, framed bool, grace time.Duration, mark string) []string {
	mode := "raw"
	if framed {
		mode = "framed"
	}
	return []string{"sh", "-c", lineWrapper, "stepmux-run", mode, tenths(grace), mark, line}
}

// tenths returns a grace as the wrappers count it, in tenths of a second.
func tenths(grace time.Duration) string {
	const tenth = 100 * time.Millisecond
	return strconv.FormatInt(int64((grace+tenth-1)/tenth), 10)
}
