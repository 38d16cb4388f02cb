package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrClosed says that the Store was closed.
var ErrClosed = errors.New("the component store is closed")

// AccessError says that a server does not give what was asked for: it is not there, or not for whoever asked.
// Many servers do not say which.
type AccessError struct {
	// Status is the HTTP status; 404 also for what is a directory of this machine.
	Status int
	// Presented tells that credentials were presented.
	Presented bool
}

func (e *AccessError) Error() string {
	switch {
	case e.Status == 404:
		return "the server does not have it (HTTP status 404), or shows it to others only; check the address and the credentials"
	case e.Presented:
		return fmt.Sprintf("the server refuses the credentials (HTTP status %d)", e.Status)
	default:
		return fmt.Sprintf("the server wants credentials (HTTP status %d), or does not have it; check the address", e.Status)
	}
}

// hint adds to an error of the cache in dir what can be done about it, where that is known.
func hint(err error, dir string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), strings.Contains(err.Error(), "No space left on device"):
		return fmt.Errorf("%w (free space or inodes on the file system of %s, or use another cache directory)", err, dir)
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (user %d must be able to write in %s; else use another cache directory)", err, os.Geteuid(), dir)
	}
	return err
}

// isOurs reports whether err is of a file of ours, not of what a server sent.
func isOurs(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

// printable is text of a server or an archive, as far as it can be shown: at most n bytes, on one line.
func printable(text string, n int) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == '\uFFFD' || c >= 0x80 && c < 0xa0 {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, " "))
	if text = strings.Join(strings.Fields(text), " "); len(text) > n {
		text = strings.ToValidUTF8(text[:n], "") + "..."
	}
	return text
}
