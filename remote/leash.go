package remote

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// errLeash is the cause of a context that ended with the leash.
var errLeash = errors.New("the manager has gone: stdin has ended")

// leash returns a context that ends, with errLeash, when in does, if in is a pipe or a socket: closing
// an SSH channel, or losing the connection, is seen on the VM as the end of stdin and nothing else. A
// daemon's stdin (/dev/null, a terminal, a file, none) is no leash, and the death of the parent
// process is no reason to end: a shell that starts a server in the background goes away.
//
// What arrives on stdin is discarded. The caller must call stop, which waits until in is not read any
// more; in itself stays open.
func leash(parent context.Context, in *os.File) (ctx context.Context, stop func(), err error) {
	ctx, cancel := context.WithCancelCause(parent)
	if !isLeash(in) {
		return ctx, func() { cancel(nil) }, nil
	}
	f, restore, err := wakeable(in)
	if err != nil {
		cancel(nil)
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		drain(f)
		cancel(errLeash)
	}()
	return ctx, func() {
		cancel(nil)
		f.Close()
		<-done
		restore()
	}, nil
}

func isLeash(in *os.File) bool {
	if in == nil {
		return false
	}
	fi, err := in.Stat()
	return err == nil && fi.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0
}

// drain reads f until it ends, for whatever reason.
func drain(f *os.File) {
	buf := make([]byte, 4096)
	for {
		if _, err := f.Read(buf); err != nil {
			return
		}
	}
}
