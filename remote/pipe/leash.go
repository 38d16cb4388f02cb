package pipe

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// ErrLeash is the cause of a context that ended with its leash.
var ErrLeash = errors.New("the manager has gone: stdin has ended")

// Leash returns a context that ends with parent or, if in is a pipe or a socket, with ErrLeash when in ends. An SSH
// server tells a process the end of its channel or connection only by closing its stdin. The stdin of a daemon
// (/dev/null, a terminal, a file, none) is no leash. The death of the parent process is no sign either: a shell that
// starts a server in the background exits.
//
// Bytes that arrive on in are discarded. The caller must call stop, which waits until in is no longer read. in stays
// open.
func Leash(parent context.Context, in *os.File) (ctx context.Context, stop func(), err error) {
	if !isLeash(in) {
		ctx, cancel := context.WithCancel(parent)
		return ctx, cancel, nil
	}
	f, err := Open(in)
	if err != nil {
		return nil, nil, err
	}
	ctx, stop = Watch(parent, f)
	return ctx, stop, nil
}

// Watch returns a context that ends with parent, or with ErrLeash when f ends. Bytes that arrive on f are discarded.
// The caller must call stop, which closes f and waits until it is no longer read.
func Watch(parent context.Context, f *File) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			if _, err := f.Read(buf); err != nil {
				break
			}
		}
		cancel(ErrLeash)
	}()
	return ctx, func() {
		cancel(nil)
		f.Close()
		<-done
	}
}

func isLeash(in *os.File) bool {
	if in == nil {
		return false
	}
	fi, err := in.Stat()
	return err == nil && fi.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0
}
