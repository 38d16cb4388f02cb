package connector

import (
	"slices"
	"strconv"
	"time"
)

// Every command for a VM is built here, and nowhere else, as an argument vector; where a login shell stands
// in between, mux quotes it. No job variable is ever part of one.

// secretFlag tells serve to read the build's secret from its stdin.
const secretFlag = "--secret-stdin"

// serveArgv starts the build's step runner.
func serveArgv(runner []string, socket string, secret bool) []string {
	argv := runnerArgv(runner, "steps", "serve", "--socket", socket)
	if secret {
		argv = append(argv, secretFlag)
	}
	return argv
}

// proxyArgv bridges stdin and stdout to the build's socket.
func proxyArgv(runner []string, socket string) []string {
	return runnerArgv(runner, "steps", "proxy", "--socket", socket)
}

// relayArgv starts the VM's relay.
func relayArgv(runner []string, tempDir string) []string {
	return runnerArgv(runner, "steps", "relay", "--temp-dir", tempDir)
}

// removeArgv removes a build's directory that its serve could not remove itself.
func removeArgv(dir string) []string { return []string{"rm", "-rf", "--", dir} }

func runnerArgv(runner []string, args ...string) []string {
	return slices.Concat(runner, args)
}

// helperArgv runs a shell for a script of n bytes that follows on stdin, by the program that the relay is:
// it must be a relay that starts it. So the two are of one version, wherever the program lies.
func helperArgv(shell []string, n int, grace time.Duration) []string {
	return slices.Concat([]string{"/proc/self/exe", "steps", "script", "--bytes", strconv.Itoa(n), "--grace", grace.String(), "--"}, shell)
}

// scriptArgv is helperArgv for a machine that has nothing of ours. mark is a word that finds what the script
// has started.
func scriptArgv(shell []string, n int, grace time.Duration, mark string) []string {
	return slices.Concat([]string{"sh", "-c", scriptWrapper, "stepmux-script", strconv.Itoa(n), tenths(grace), mark}, shell)
}

// lineArgv runs a command line by the login shell, on a machine that has nothing of ours, with what follows
// on stdin: as it is, or, if framed, in pieces with their lengths.
func lineArgv(line string, framed bool, grace time.Duration, mark string) []string {
	mode := "raw"
	if framed {
		mode = "framed"
	}
	return []string{"sh", "-c", lineWrapper, "stepmux-run", mode, tenths(grace), mark, line}
}

// tenths is how the wrappers count a grace.
func tenths(grace time.Duration) string {
	const tenth = 100 * time.Millisecond
	return strconv.FormatInt(int64((grace+tenth-1)/tenth), 10)
}
