package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// Command is a command to run. Start does not keep or change its slices.
type Command struct {
	// Argv is the program and its arguments. A name without a slash is looked up in the PATH of Env, never in this
	// process's PATH. Relative paths, also in PATH, are relative to Dir.
	Argv []string
	// Dir is the working directory: an absolute path that must exist.
	Dir string
	// Env is the whole environment, as KEY=VALUE: the command inherits nothing. If a key comes several times, its last
	// entry counts. Start adds [Marker] and the number of the command.
	Env []string
	// Stdin is the command's input. If nil, it is empty. The caller closes it.
	Stdin *os.File
	// Stdout and Stderr get the output, each from one goroutine, until Close has returned. If both are the same Writer,
	// it gets all output in the order in which the command writes it. Nil discards the output. A Writer that fails gets
	// no more bytes and does not stop the command; a Writer that blocks delays the command and Close. An *os.File becomes
	// the command's own stdout or stderr.
	Stdout, Stderr io.Writer
	// Visible is a directory that the isolation of the [Init] must not hide, an absolute path. May be empty.
	Visible string
}

// maxCommand bounds the arguments and the environment of a command together, in bytes. The kernel accepts 6 MiB at
// most, for a stack of any size.
const maxCommand = 4 << 20

// check returns an error if it is certain, without a start, that the command cannot run.
func (c *Command) check() error {
	switch {
	case len(c.Argv) == 0 || c.Argv[0] == "":
		return errors.New("start command: it has no program")
	case !path.IsAbs(c.Dir):
		return fmt.Errorf("start %q: the working directory %q is not an absolute path", c.Argv[0], c.Dir)
	case c.Visible != "" && !path.IsAbs(c.Visible):
		return fmt.Errorf("start %q: the visible directory %q is not an absolute path", c.Argv[0], c.Visible)
	case strings.ContainsRune(c.Dir, 0) || strings.ContainsRune(c.Visible, 0):
		return fmt.Errorf("start %q: a directory's path has a NUL byte", c.Argv[0])
	}
	longest := 32*os.Getpagesize() - 1 // MAX_ARG_STRLEN of execve(2), without its NUL
	size := 0
	for i, arg := range c.Argv {
		switch {
		case strings.ContainsRune(arg, 0):
			return fmt.Errorf("start %q: argument %d has a NUL byte", c.Argv[0], i)
		case len(arg) > longest:
			return tooLarge(c.Argv[0], "argument %d has %d bytes, the limit for one is %d", i, len(arg), longest)
		}
		size += len(arg) + 1
	}
	for _, entry := range c.Env {
		key, _, ok := strings.Cut(entry, "=")
		switch {
		case !ok || key == "":
			// The message does not quote the entry, because it may be a secret.
			return fmt.Errorf("start %q: an environment entry is not KEY=VALUE", c.Argv[0])
		case strings.ContainsRune(entry, 0):
			return fmt.Errorf("start %q: environment variable %q has a NUL byte", c.Argv[0], key)
		case len(entry) > longest:
			return tooLarge(c.Argv[0], "environment variable %q has %d bytes, the limit for one is %d", key, len(entry), longest)
		}
		size += len(entry) + 1
	}
	if size > maxCommand {
		return tooLarge(c.Argv[0], "the command's arguments and environment have %d bytes, the limit is %d", size, maxCommand)
	}
	return nil
}

// LastOfEachKey returns env with the last entry of each key only, in the order of the first entries.
func LastOfEachKey(env []string) []string {
	last := make([]string, 0, len(env))
	index := make(map[string]int, len(env))
	for _, entry := range env {
		key, _, _ := strings.Cut(entry, "=")
		if i, ok := index[key]; ok {
			last[i] = entry
			continue
		}
		index[key] = len(last)
		last = append(last, entry)
	}
	return last
}
