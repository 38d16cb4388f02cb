package program

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/termtext"
)

// ErrNotRun is wrapped by the error of a VM whose login does not run the commands that it is given: it runs another
// program, waits for input, or ends. No other command will be run either.
var ErrNotRun = errors.New("the login did not run the command")

// maxSaid bounds the text of each stream that an error quotes, in bytes.
const maxSaid = 400

// NotRunHint is the advice for ErrNotRun.
const NotRunHint = "is another program named by ForceCommand in sshd_config or by command= in authorized_keys, is " +
	"the login's shell no shell, or do its start-up files end it, start another (exec) or read standard input? " +
	"stepmux doctor examines it"

// limitReached matches the messages of shells, setsid and Go's runtime if a limit of the login stops their start.
var limitReached = map[string]*regexp.Regexp{
	"the login's user has as many processes as allowed: raise ulimit -u where it is set, in the login's start-up files, " +
		"/etc/security/limits.conf, or TasksMax of the user's slice": regexp.MustCompile(
		`(?i)\bcan(?:no|')t v?fork\b|\bv?fork(?:: | failed).*unavailable|resource temporarily unavailable|` +
			`no more processes`),
	"the login may have no more open files: raise ulimit -n where it is set, in the login's start-up files or " +
		"/etc/security/limits.conf": regexp.MustCompile(`(?i)too many open files|` +
		`: [0-9]+: Invalid argument`), // so says dash of a descriptor above the limit
	"the login gets no memory: raise ulimit -v where it is set, or give the VM more memory": regexp.MustCompile(
		`(?i)can(?:no|')t allocate memory|out of memory`),
}

// Advice returns what to change on a VM whose login cannot start a process, by what the VM said: a limit of the login,
// or else otherwise. It is empty if that text has the advice.
func Advice(said, otherwise string) string {
	if strings.Contains(said, "raise ulimit") { // added by package tail
		return ""
	}
	for _, hint := range slices.Sorted(maps.Keys(limitReached)) {
		if limitReached[hint].MatchString(said) {
			return hint
		}
	}
	return otherwise
}

// unanswered returns the error of a command that had not answered when its caller gave up. said is the VM's text.
func unanswered(command, said string) error {
	if said != "" {
		said = "; it said: " + termtext.Short(said, maxSaid)
	}
	return fmt.Errorf("%q had not answered%s", command, said)
}

// notRun returns the error of a login that did not run a command. why is what was seen in place of the command, stdout
// and stderr what the VM printed.
func notRun(command []string, why error, stdout []byte, stderr string) error {
	said, err := NotRun(strings.Join(shown(command), " "), why, stdout, stderr)
	return notStarted(err, said, Advice(said, NotRunHint))
}

// NotRun returns an error that wraps ErrNotRun, and the text that the VM printed in place of the command, as a bounded
// line. why is what was seen in place of the command, stdout and stderr what the VM printed.
func NotRun(command string, why error, stdout []byte, stderr string) (said string, err error) {
	said = termtext.Short(string(stdout), maxSaid) // its beginning: the end may be a copy of a long command line
	if said != "" && stderr != "" {
		said += " | "
	}
	return said + termtext.Short(stderr, maxSaid), fmt.Errorf("%w %q: %w", ErrNotRun, termtext.Cut(command, maxSaid), why)
}

// ServeError reports that a build's `steps serve` could not be started, did not listen in time, or ended. The effects
// of the job's steps are unknown.
type ServeError struct {
	// Ready is true if serve had been listening.
	Ready bool
	// ExitCode is serve's exit status as a shell reports it: 128 plus the signal's number if a signal ended it, -1 if
	// unknown.
	ExitCode int
	// Stderr holds the last lines that serve wrote to its standard error or, with ErrNotRun, that the VM printed in
	// place of it. It is untrusted text.
	Stderr string
	// Hint is the change to make, if it is known.
	Hint string
	// Err is the cause.
	Err error
}

func (e *ServeError) Error() string {
	text := "steps serve did not start: "
	if e.Ready {
		text = "the build's steps serve ended: "
	}
	text += fmt.Sprint(e.Err)
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	if e.Stderr != "" {
		text += "; it said: " + e.Stderr
	}
	return text
}

// Unwrap returns the cause.
func (e *ServeError) Unwrap() error { return e.Err }

// notStarted returns the error of a step runner that did not start and has no exit code.
func notStarted(err error, stderr, hint string) error {
	return &ServeError{ExitCode: -1, Stderr: stderr, Hint: hint, Err: err}
}

// InputHint is the advice for a command whose standard input had ended when it started.
const InputHint = "do the start-up files of the login's shell take it, as exec </dev/null does? they may not: first " +
	"in .bashrc, [ -t 0 ] || return"

// MissingHint is the advice for a runner command that is not on the VM.
func MissingHint(runner []string) string {
	return fmt.Sprintf("is %q installed on the VM, executable, and on the PATH of a non-interactive login? "+
		"install it, name its path as the runner command (stepmux run --runner-command)%s",
		strings.Join(shown(runner), " "), orBootstrap)
}

// orBootstrap is the end of a hint to install a program.
const orBootstrap = ", or let it be put there (stepmux run --bootstrap)"

// unusableError reports that a runner command does not work on a VM. Another program there may work.
type unusableError struct {
	err      error    // the build's error if no replacement is found
	problem  string   // a few words that follow the program's name
	platform string   // of the VM; empty if it was not inspected
	others   []string // those of otherRunners that are on the VM
	program  *Program // not nil if builds can still use it by session
}

func (e *unusableError) Error() string { return e.err.Error() }
func (e *unusableError) Unwrap() error { return e.err }
