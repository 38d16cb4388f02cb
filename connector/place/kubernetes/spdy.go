package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"github.com/moby/spdystream"
)

// The protocol v4.channel.k8s.io over SPDY/3.1, for API servers before 1.30 and proxies that refuse WebSockets. It
// has a stream for each standard stream, and one for the server's report about the command's end. If the connection
// is lost, all of them end as if the command had ended, so a command without a report counts as cut.
const (
	spdyVersion  = "SPDY/3.1"
	spdyProtocol = "v4.channel.k8s.io"
	// spdyTimeout bounds the wait for the server to take a stream, if the context has no deadline.
	spdyTimeout = 30 * time.Second
)

// spdyStream is a command that is executed in a container, by SPDY. It implements execution. Three goroutines read the
// connection, stderr and the status; Close waits for them.
type spdyStream struct {
	ending
	raw     io.Closer
	in, out *spdystream.Stream
	all     []*spdystream.Stream
	refused *spdystream.Stream // the stream that the server refused; nil if it accepted all
	wg      sync.WaitGroup
	served  chan struct{} // closed once the connection is no longer read

	statusRead chan struct{} // closed once statusErr is set
	statusErr  error         // why there is no status

	closeOnce sync.Once
	closed    chan struct{}
}

// executeSPDY is execute over SPDY.
func (c *Cluster) executeSPDY(ctx context.Context, op, at string, stderr io.Writer) (*spdyStream, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", spdyVersion)
	request.Header.Set("X-Stream-Protocol-Version", spdyProtocol)
	answer, err := c.http1.Do(request) //nolint:bodyclose // it is closed here, or is the stream's
	if err != nil {
		return nil, dialError(ctx, op, nil, err)
	}
	raw, ok := answer.Body.(io.ReadWriteCloser)
	if answer.StatusCode != http.StatusSwitchingProtocols || !ok {
		defer answer.Body.Close()
		return nil, dialError(ctx, op, answer, errors.New("the API server does not speak SPDY"))
	}
	conn, err := spdystream.NewConnection(spdyConn{raw}, false)
	if err != nil {
		_ = raw.Close() // it is of no use
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	s := &spdyStream{
		ending: ending{ended: make(chan struct{})}, raw: raw, statusRead: make(chan struct{}), closed: make(chan struct{}),
		served: make(chan struct{}),
	}
	s.wg.Go(func() {
		defer close(s.served)
		conn.Serve(func(s *spdystream.Stream) { _ = s.Refuse() }) // fails only if the connection has ended
	})
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() }) // makes the calls below fail
	err = s.open(ctx, conn, stderr)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = s.Close() // always nil
		return nil, dialError(ctx, op, nil, err)
	}
	return s, nil
}

// open opens the streams.
func (s *spdyStream) open(ctx context.Context, conn *spdystream.Connection, stderr io.Writer) error {
	made := map[string]*spdystream.Stream{}
	for _, kind := range []string{"error", "stdin", "stdout", "stderr"} {
		one, err := conn.CreateStream(http.Header{"Streamtype": {kind}}, nil, false)
		if one != nil {
			made[kind] = one
			s.all = append(s.all, one)
		}
		if err == nil {
			timeout := spdyTimeout
			if until, ok := ctx.Deadline(); ok {
				timeout = max(time.Until(until), time.Millisecond) // zero is without end
			}
			err = one.WaitTimeout(timeout)
		}
		if err != nil {
			s.refused = one
			return err
		}
	}
	s.in, s.out = made["stdin"], made["stdout"]
	s.wg.Go(func() { _, _ = io.Copy(stderr, made["stderr"]) }) // until the stream ends
	s.wg.Go(func() {
		defer close(s.statusRead)
		text, err := io.ReadAll(io.LimitReader(made["error"], maxStatus+1))
		if err == nil && len(text) > 0 {
			err = s.take(text)
		}
		s.statusErr = err
		_, _ = io.Copy(io.Discard, made["error"]) // until the stream ends
	})
	return nil
}

// Read implements io.Reader. It returns io.EOF once the server has reported how the command ended.
func (s *spdyStream) Read(p []byte) (int, error) {
	for {
		n, err := s.out.Read(p)
		if n > 0 {
			return n, nil
		}
		if err == nil {
			continue // an empty frame
		}
		select {
		case <-s.statusRead:
		case <-s.closed:
		}
		s.markEnded()
		switch {
		case s.told() != nil:
			return 0, io.EOF
		case pause.Done(s.closed):
			return 0, io.ErrClosedPipe
		case s.statusErr != nil:
			return 0, s.statusErr
		default:
			return 0, errNoStatus
		}
	}
}

// Write implements io.Writer.
func (s *spdyStream) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := s.in.Write(p[written:min(len(p), written+maxPiece)])
		written += n
		if err != nil {
			return written, s.cut(err)
		}
	}
	return written, nil
}

// CloseWrite ends the command's stdin.
func (s *spdyStream) CloseWrite() error {
	if err := s.in.Close(); err != nil {
		return s.cut(err)
	}
	return nil
}

func (s *spdyStream) cut(err error) error {
	if pause.Done(s.closed) {
		return io.ErrClosedPipe
	}
	return fmt.Errorf("%w: %w", errNoStatus, foreign(err))
}

// Close implements io.Closer. It does not wait for the command, which sees the end of its stdin.
func (s *spdyStream) Close() error {
	s.closeOnce.Do(func() {
		close(s.closed)
		_ = s.raw.Close() // fails only if the connection has ended
		for _, one := range s.all {
			_ = one.Reset() // it fails, as the connection has ended; those that read the stream return
		}
		// The library may block until somebody has received the news that the server refuses the stream.
		for s.refused != nil && !pause.Done(s.served) {
			if err := s.refused.WaitTimeout(firstPause); !errors.Is(err, spdystream.ErrTimeout) {
				break
			}
		}
		s.wg.Wait()
	})
	return nil
}

// spdyConn is a connection as package spdystream takes it. It has no deadlines.
type spdyConn struct{ io.ReadWriteCloser }

// Close implements io.Closer. It returns nil: on an error the library waits for a second.
func (c spdyConn) Close() error {
	_ = c.ReadWriteCloser.Close() // fails only if the connection has ended
	return nil
}

func (spdyConn) LocalAddr() net.Addr              { return nil }
func (spdyConn) RemoteAddr() net.Addr             { return nil }
func (spdyConn) SetDeadline(time.Time) error      { return nil }
func (spdyConn) SetReadDeadline(time.Time) error  { return nil }
func (spdyConn) SetWriteDeadline(time.Time) error { return nil }
