package pipe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stepmux/stepmux/internal/wire"
)

// SocketOnStdin in place of a socket's path means that the path is the first line of stdin. A manager prestarts a serve
// or a proxy with it, before it knows their build.
const SocketOnStdin = "-"

// Lines reads the first lines of stdin. Its owner closes it.
type Lines struct {
	file *File
	stop func() bool
	r    *bufio.Reader
}

// OpenLines returns the Lines of in. When ctx ends, blocked reads end; the methods that read must get the same ctx. in
// stays open.
func OpenLines(ctx context.Context, in *os.File) (*Lines, error) {
	f, err := Open(in)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	return &Lines{f, stop, bufio.NewReaderSize(f, max(wire.MaxSocketPath+1, wire.MaxSecretLine))}, nil
}

// Close stops reading and restores the mode of stdin.
func (l *Lines) Close() {
	l.stop()
	l.file.Close()
}

// Rest returns the bytes that were read beyond the lines. No line can be read after it.
func (l *Lines) Rest() []byte {
	rest, _ := l.r.Peek(l.r.Buffered())
	return rest
}

// next returns the next line, without its newline. The error is io.EOF if stdin ends before the line's first byte, the
// cause of ctx if that has ended, bufio.ErrBufferFull if the line is too long, or an error of the read.
func (l *Lines) next(ctx context.Context) ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	switch {
	case err == nil:
		return line[:len(line)-1], nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return nil, io.ErrUnexpectedEOF
	default:
		return nil, err
	}
}

// Socket returns the next line, the path of a socket. The path is empty if stdin ends before the line's first byte:
// then the manager does not need this prestarted process.
func (l *Lines) Socket(ctx context.Context) (string, error) {
	line, err := l.next(ctx)
	switch {
	case errors.Is(err, io.EOF):
		return "", nil
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("wait for the socket's path on stdin: %w", err)
	case errors.Is(err, bufio.ErrBufferFull), len(line) > wire.MaxSocketPath:
		return "", fmt.Errorf("the first line of stdin has more than %d bytes: "+
			"that is not the path of a socket", wire.MaxSocketPath)
	case err != nil:
		return "", fmt.Errorf("read the socket's path from stdin: %w", err)
	}
	return string(line), nil
}

// Secret reads the next line, a secret that must come within the timeout, and returns its verifier. It does not keep
// the secret itself.
func (l *Lines) Secret(ctx context.Context, timeout time.Duration) (wire.Verifier, error) {
	late := time.AfterFunc(timeout, func() { l.file.SetReadDeadline(time.Unix(1, 0)) })
	defer late.Stop()
	line, err := l.next(ctx)
	defer clear(line)
	if err == nil {
		var secret wire.Secret
		if secret, err = wire.ParseSecret(string(line)); err == nil {
			return secret.Verifier(), nil
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New(wire.NoSecret)
	case errors.Is(err, bufio.ErrBufferFull):
		err = fmt.Errorf("the line with the secret has more than %d characters", wire.MaxSecretLine-1)
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("no secret came within %v", timeout)
	}
	return wire.Verifier{}, fmt.Errorf("read the secret from stdin: %w", err)
}
