package remote

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

// SocketOnStdin as the path of a socket says that the path is the first line of stdin: a serve or a proxy that
// is started before its build is known.
const SocketOnStdin = "-"

// secretTimeout bounds the wait for the secret. Its manager sends it together with the start of serve.
const secretTimeout = 30 * time.Second

// stdinLines reads the first lines of stdin. What it has read beyond them only rest gives back.
type stdinLines struct {
	file    *os.File // a duplicate
	restore func()
	stop    func() bool
	r       *bufio.Reader
}

// openStdinLines returns the lines of in. ctx, which the functions that read get too, ends their waits. The caller
// closes them.
func openStdinLines(ctx context.Context, in *os.File) (*stdinLines, error) {
	f, restore, err := wakeable(in)
	if err != nil {
		return nil, err
	}
	l := &stdinLines{file: f, restore: restore}
	// A file without deadlines is none on which a read waits.
	l.stop = context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	l.r = bufio.NewReaderSize(f, max(wire.MaxSocketPath+1, wire.MaxSecretLine))
	return l, nil
}

func (l *stdinLines) close() {
	l.stop()
	l.file.Close()
	l.restore()
}

// rest returns what was read beyond the lines. Nothing is read afterwards.
func (l *stdinLines) rest() []byte {
	rest, _ := l.r.Peek(l.r.Buffered())
	return rest
}

// next returns the next line, without its newline. The error is io.EOF if stdin ends before anything of it came,
// and else the cause of ctx, bufio.ErrBufferFull if the line is too long, or another.
func (l *stdinLines) next(ctx context.Context) ([]byte, error) {
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

// socket returns the path of a socket that is the next line. It is empty if stdin ends before anything came:
// whoever started this has no use for it.
func (l *stdinLines) socket(ctx context.Context) (string, error) {
	line, err := l.next(ctx)
	switch {
	case errors.Is(err, io.EOF):
		return "", nil
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("wait for the socket's path on stdin: %w", err)
	case errors.Is(err, bufio.ErrBufferFull), len(line) > wire.MaxSocketPath:
		return "", fmt.Errorf("the first line of stdin is no socket's path: it has more than %d bytes", wire.MaxSocketPath)
	case err != nil:
		return "", fmt.Errorf("read the socket's path from stdin: %w", err)
	}
	return string(line), nil
}

// socketLine returns the path that is the first line of in, and what was read beyond it. The path is empty if in
// ends before anything came.
func socketLine(ctx context.Context, in *os.File) (path string, rest []byte, err error) {
	lines, err := openStdinLines(ctx, in)
	if err != nil {
		return "", nil, err
	}
	defer lines.close()
	path, err = lines.socket(ctx)
	return path, lines.rest(), err
}

// secret returns what knows the secret that is the next line, which must come within the timeout. The secret
// itself is not kept.
func (l *stdinLines) secret(ctx context.Context, timeout time.Duration) (wire.Verifier, error) {
	late := time.AfterFunc(timeout, func() { _ = l.file.SetReadDeadline(time.Unix(1, 0)) })
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
		err = errors.New("it ended before the secret came")
	case errors.Is(err, bufio.ErrBufferFull):
		err = fmt.Errorf("the line with the secret has more than %d characters", wire.MaxSecretLine-1)
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("no secret came within %v", timeout)
	}
	return wire.Verifier{}, fmt.Errorf("read the secret from stdin: %w", err)
}
