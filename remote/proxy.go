package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/remote/builduser"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// ProxyConfig names the socket that Proxy connects to.
type ProxyConfig struct {
	// Socket is the path of the build's socket, as in serve's ready marker. If SocketOnStdin, the path is the first
	// line of stdio.In, and the bytes after it go to the socket.
	Socket string
}

// Proxy connects to a build's socket and carries bytes: stdio.In to the socket, the socket to stdio.Out. It does not
// look at them, and writes nothing else to Out.
//
// Each direction ends by itself: the end of In ends the connection's sending half, and the end of the server's sending
// half closes Out. Proxy returns nil when both directions have ended, or when the server has closed the connection,
// even if In is still open. It returns an error if In fails, Out cannot be written, or ctx ends. It waits for all its
// goroutines. In stays open, and so does Out unless the server has ended.
//
// Proxy refuses a socket unless the process that listens on it belongs to our own user or to root. If root calls Proxy,
// it first becomes the owner of the socket. From then on other processes of the user cannot look into this one
// (PR_SET_DUMPABLE, prctl(2)).
func Proxy(ctx context.Context, stdio Stdio, cfg ProxyConfig) error {
	if err := pipe.Conceal(); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	var first []byte
	if cfg.Socket == SocketOnStdin {
		var err error
		if cfg.Socket, first, err = takeSocket(ctx, stdio.In); err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
		if cfg.Socket == "" {
			return nil
		}
	}
	if err := builduser.BecomeOwner(cfg.Socket); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	conn, err := socketdir.Connect(ctx, cfg.Socket)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer func() { _ = conn.Close() }()
	in, err := pipe.Open(stdio.In)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer in.Close()
	out, err := pipe.Open(stdio.Out)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer out.Close()
	in.Widen()
	out.Widen()
	socket, err := pipe.NewRaw(conn, cfg.Socket)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}

	// Closing all three wakes every goroutine that waits for one of them.
	closeAll := func() {
		_ = conn.Close()
		out.Close()
		in.Close()
	}
	stop := context.AfterFunc(ctx, closeAll)
	defer stop()

	var wg sync.WaitGroup // waited for below
	var upErr error
	up := make(chan struct{}) // closed once upErr is set
	wg.Go(func() {
		defer close(up)
		upErr = sendUp(socket, conn, io.MultiReader(bytes.NewReader(first), in), closeAll)
	})
	err = pipe.Copy(out, socket)
	if err == nil {
		out.Close()
		endOutput(stdio.Out)
		wg.Go(func() {
			pipe.WaitHangup(conn)
			in.Close()
		})
		<-up
	}
	closeAll()
	wg.Wait()
	return proxyError(ctx, cfg.Socket, upErr, err)
}

// proxyError returns the error of a Proxy that has ended: upErr is that of the direction to the socket, downErr that of
// the other one.
func proxyError(ctx context.Context, socket string, upErr, downErr error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("proxy: %w", context.Cause(ctx))
	case upErr != nil:
		return fmt.Errorf("proxy: stdin: %w", upErr)
	case errors.Is(downErr, pipe.ErrRead) && errors.Is(downErr, unix.ECONNRESET):
		return nil // the server has exited before it read everything
	case errors.Is(downErr, pipe.ErrRead):
		return fmt.Errorf("proxy: %s: %w", socket, downErr)
	case downErr != nil:
		return fmt.Errorf("proxy: stdout: %w", oserr.Bare(downErr))
	}
	return nil
}

// takeSocket reads the socket's path, the first line of in. rest are the bytes that were read beyond it. The path is
// empty if in ends before the line's first byte.
func takeSocket(ctx context.Context, in *os.File) (path string, rest []byte, err error) {
	lines, err := pipe.OpenLines(ctx, in)
	if err != nil {
		return "", nil, err
	}
	defer lines.Close()
	path, err = lines.Socket(ctx)
	return path, lines.Rest(), err
}

// sendUp copies in to the socket of conn, and ends conn's sending half when in ends. If in fails, sendUp ends the whole
// proxy by closeAll: the server must not take a broken input for a complete one.
func sendUp(socket io.Writer, conn *net.UnixConn, in io.Reader, closeAll func()) error {
	err := pipe.Copy(socket, in)
	switch {
	case err == nil:
		_ = conn.CloseWrite()
	case errors.Is(err, pipe.ErrRead) && !errors.Is(err, os.ErrClosed):
		closeAll()
		return err
	}
	// Otherwise the server has stopped reading, but it may still send.
	return nil
}

// endOutput shows the reader of out that the output has ended. If out is a socket it may be our stdin too: the reader
// would then not notice that one of two descriptors was closed.
func endOutput(out *os.File) {
	if rc, err := out.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	out.Close()
}
