// Package netfault tells faults of the network, of a server or of this machine from mistakes in a request: [OfServer]
// by the status of an answer, [OfGit] and [OfDocker] by the messages of those programs.
package netfault

import (
	"errors"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/lazyregexp"
)

// OfServer reports whether a status says that the server fails, or answers later, whatever it was asked for.
func OfServer(status int) bool {
	return status >= http.StatusInternalServerError || status == http.StatusTooManyRequests ||
		status == http.StatusRequestTimeout
}

// machineFaults are the texts of git and of the operating system about faults of this machine. Those about a reference,
// such as "not our ref", are not among them.
var machineFaults = []string{
	"No space left on device", "Disk quota exceeded", "Read-only file system", "Input/output error",
	"Permission denied",
	"Cannot allocate memory", "ut of memory", "Resource temporarily unavailable", "Too many open files",
}

// serverFaults are those about servers and the way to them. For a request without an answer another library says why,
// so the beginning of the line must do.
var serverFaults = []string{
	"unable to access '", "RPC failed", "hung up", "unexpected disconnect", "early EOF", "expected flush",
	"invalid server response", "protocol error",
}

// answered matches the status of a server's answer.
var answered = lazyregexp.New(`(?:returned error:|RPC failed; HTTP) (\d{3})`)

// OfGit reports whether the network, the server or this machine is at fault for a git that failed, and whether that is
// not this machine. stderr is its error output, or the end of that, and err the error of its process.
func OfGit(stderr string, err error) (is, server bool) {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && !exit.Exited() { // the kernel kills it without memory
		return true, false
	}
	for line := range strings.SplitSeq(stderr, "\n") {
		if !strings.HasPrefix(line, "fatal: ") && !strings.HasPrefix(line, "error: ") { // the server may have written it
			if ofDirectory(line) {
				return true, false
			}
			continue
		}
		if m := answered().FindStringSubmatch(line); m != nil {
			status, _ := strconv.Atoi(m[1])
			server := OfServer(status)
			return server, server
		}
		found := func(text string) bool { return strings.Contains(line, text) }
		machine, server := slices.ContainsFunc(machineFaults, found), slices.ContainsFunc(serverFaults, found)
		if machine || server {
			return true, !machine
		}
	}
	return false, false
}

// ofDirectory reports whether a line is git's about a directory of a repository that it could not make: the path and
// what the system says, without the "fatal: " of its other messages.
func ofDirectory(line string) bool {
	path, text, ok := strings.Cut(line, ": ")
	return ok && strings.HasPrefix(path, "/") && slices.Contains(strings.Split(path, "/"), ".git") &&
		slices.Contains(machineFaults, text)
}

// registryFaults are texts of docker and podman about registries and the way to them.
var registryFaults = []string{
	"dial tcp", "no such host", "i/o timeout", "TLS handshake timeout", "connection refused", "connection reset",
	"Client.Timeout", "deadline exceeded", "unexpected EOF", "x509: ", "toomanyrequests", "429 Too Many Requests",
	": 500 ", ": 502 ", ": 503 ", ": 504 ",
}

// OfDocker reports whether the registry, the network or this machine is at fault for a docker command that could not
// get an image, and whether that is not this machine. line is the last of its error output.
func OfDocker(line string) (is, server bool) {
	if strings.Contains(line, "denied: ") { // the registry refuses this user
		return false, false
	}
	found := func(text string) bool { return strings.Contains(line, text) }
	foundHere := func(text string) bool { return found(strings.ToLower(text)) } // as Go programs write it
	machine, server := slices.ContainsFunc(machineFaults, foundHere), slices.ContainsFunc(registryFaults, found)
	return machine || server, server && !machine
}
