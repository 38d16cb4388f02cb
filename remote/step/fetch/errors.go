package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/component"
)

// ErrClosed says that the Store was closed.
var ErrClosed = errors.New("the component store is closed")

// AccessError says that a server refuses a request: the repository, archive or image does not exist, or the caller may
// not read it. Many servers do not say which.
type AccessError struct {
	// Status is the HTTP status. For a local directory it is 404.
	Status int
	// Presented says that the request had credentials.
	Presented bool
}

func (e *AccessError) Error() string {
	switch {
	case e.Status == 404:
		return "the server does not have it (HTTP status 404), or shows it to others only; check the address and the " +
			"credentials"
	case e.Presented:
		return fmt.Sprintf("the server refuses the credentials (HTTP status %d)", e.Status)
	default:
		return fmt.Sprintf("the server wants credentials (HTTP status %d), or does not have it; check the address", e.Status)
	}
}

// fault is an error of this machine, of the network or of a server. It says nothing about the reference.
type fault struct {
	error

	server bool // a server or the network path to it has failed
}

func (e fault) Unwrap() error { return e.error }

// Temporary is for the client of registries, which repeats a request after an error that has this method.
func (e fault) Temporary() bool {
	err, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](e.error)
	return ok && err.Temporary()
}

// judged returns err as a *component.SystemError unless the reference or what it leads to is at fault.
func judged(err error) error {
	known, is := errors.AsType[fault](err)
	server := is && known.server
	if git, failed := errors.AsType[*gitError](err); failed && !is {
		is, server = git.isFault()
	}
	if is || oserr.Exhausted(err) || errors.Is(err, fs.ErrPermission) {
		return &component.SystemError{Err: err, Server: server && !oserr.Exhausted(err)}
	}
	return err
}

// cutError is an error whose text was cut.
type cutError struct {
	text string
	err  error
}

// cut returns err with a text of at most 300 bytes that has no address.
func cut(err error) error {
	err = withoutURL(err)
	return &cutError{termtext.Short(err.Error(), 300), err}
}

func (e *cutError) Error() string { return e.text }

func (e *cutError) Unwrap() error { return e.err }

// hint adds a remedy to an error of the cache in dir, if one is known.
func hint(err error, dir string) error {
	_, known := errors.AsType[fault](err)
	switch {
	case err == nil || known:
		return err
	case oserr.NoSpace(err), strings.Contains(err.Error(), "No space left on device"):
		return fmt.Errorf("%w (free space or inodes on the file system of %s, or use another cache directory)", err, dir)
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (user %d must be able to write in %s; else use another cache directory)", err, os.Geteuid(),
			dir)
	}
	return err
}

// isFileError reports whether err comes from a local file, not from a server.
func isFileError(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}
