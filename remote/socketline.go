package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stepmux/stepmux/internal/wire"
)

// SocketOnStdin as the path of a socket says that the path is the first line of stdin: a serve that is
// started before its build is known.
const SocketOnStdin = "-"

// readSocketLine reads the path of a socket from the first line of in. It is empty if in ends before
// anything came: whoever started this has no use for it. The error is ctx's cause if that ends first.
func readSocketLine(ctx context.Context, in *os.File) (string, error) {
	f, restore, err := wakeable(in)
	if err != nil {
		return "", fmt.Errorf("serve: %w", err)
	}
	defer restore()
	defer f.Close()
	// A file without deadlines is none on which a read waits.
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var line []byte
	for one := make([]byte, 1); ; {
		_, err := io.ReadFull(f, one)
		switch {
		case ctx.Err() != nil:
			return "", fmt.Errorf("serve: wait for the socket's path on stdin: %w", context.Cause(ctx))
		case errors.Is(err, io.EOF) && len(line) == 0:
			return "", nil
		case err != nil:
			return "", fmt.Errorf("serve: read the socket's path from stdin: %w", err)
		case one[0] == '\n':
			return string(line), nil
		case len(line) > wire.MaxSocketPath:
			return "", fmt.Errorf("serve: the first line of stdin is no socket's path: it has more than %d bytes", wire.MaxSocketPath)
		}
		line = append(line, one[0])
	}
}
