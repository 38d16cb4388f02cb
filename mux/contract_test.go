package mux_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// The contract of every stream, over every route, against every server.

func TestStreamCarriesBytesUnchanged(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(echo)
		sent := make([]byte, 3<<20+17) // more than a window
		_, _ = rand.Read(sent)
		wrote := inBackground(func() error {
			_, err := s.Write(sent)
			return errors.Join(err, s.CloseWrite())
		})
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.NoError(t, receive(t, wrote))
		require.True(t, bytes.Equal(sent, got), "sent %d bytes, got %d", len(sent), len(got))
	})
}

func TestStreamPingPong(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(echo)
		buf := make([]byte, 600)
		for i := range 200 {
			msg := bytes.Repeat([]byte{byte(i)}, 1+i*3) // around the size of the idle buffer, too
			_, err := s.Write(msg)
			require.NoError(t, err)
			_, err = io.ReadFull(s, buf[:len(msg)])
			require.NoError(t, err)
			require.Equal(t, msg, buf[:len(msg)])
		}
	})
}

func TestStreamReadsOnAfterCloseWrite(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(echo)
		_, err := s.Write([]byte("last words"))
		require.NoError(t, err)
		require.NoError(t, s.CloseWrite())
		require.NoError(t, s.CloseWrite(), "again")
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.Equal(t, "last words", string(got))
		_, err = s.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err, "the end stays the end")
	})
}

func TestStreamThatIsCutOffIsLostAndDoesNotEnd(t *testing.T) {
	// Symptom: after the connection was cut, reads returned io.EOF, and a build that had lost its VM looked finished.
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(echo)
		_, err := s.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(s, make([]byte, 1))
		require.NoError(t, err)
		read := inBackground(func() error {
			_, err := s.Read(make([]byte, 1))
			return err
		})
		r.proxy.Cut()
		err = receive(t, read)
		requireLost(t, err)
		require.NotEqual(t, io.EOF, err)
		_, err = s.Write([]byte("y"))
		requireLost(t, err)
		receive(t, r.conn.Done())
		requireLost(t, r.conn.Err())
	})
}

func TestCloseWakesRead(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(silent)
		read := sshtest.InBlockedCall(t, func() error {
			_, err := s.Read(make([]byte, 1))
			return err
		})
		require.NoError(t, s.Close())
		require.ErrorIs(t, receive(t, read), io.ErrClosedPipe)
	})
}

func TestCloseWakesWriteThoughThePeerNeverReads(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(silent)
		wrote := fill(t, s)
		require.NoError(t, s.Close())
		require.ErrorIs(t, receive(t, wrote), io.ErrClosedPipe)
		require.NoError(t, s.Close(), "again")
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.ErrClosedPipe)
		_, err = s.Write([]byte("x"))
		require.ErrorIs(t, err, io.ErrClosedPipe)
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, s.SetDeadline(time.Time{}), net.ErrClosed)
	})
}

// Symptom: a Write to a socket by a relay could not be woken while the link was frozen.
//
//stepmux:faults executor | Close of a stream does not wake a Write on a relay's socket over a frozen link; the
//stepmux:more keepalive does, after 30 s
//stepmux:with mux/relay.TestRelayOverAPipeWakesCallsOnAFrozenLink
func TestCloseAndDeadlinesWakeCallsOnAFrozenLink(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s, sibling := r.open(echo), r.open(echo)
		_, err := s.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(s, make([]byte, 1))
		require.NoError(t, err)
		r.proxy.Stall()

		wrote := fill(t, s) // its window, or all that the link takes
		filled := fill(t, sibling)
		require.NoError(t, s.SetWriteDeadline(time.Now()))
		require.ErrorIs(t, receive(t, wrote), os.ErrDeadlineExceeded)
		require.NoError(t, s.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		_, err = s.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)

		require.NoError(t, s.SetDeadline(time.Time{}))
		read := sshtest.InBlockedCall(t, func() error {
			_, err := s.Read(make([]byte, 1))
			return err
		})
		wrote = fill(t, s)
		for _, c := range []duplex{s, sibling} {
			closed := inBackground(c.Close)
			require.NoError(t, receive(t, closed))
		}
		for _, woken := range []<-chan error{read, wrote, filled} {
			require.ErrorIs(t, receive(t, woken), io.ErrClosedPipe)
		}
		require.NoError(t, r.conn.Err(), "Close woke them, and not the end of the connection")
	})
}

func TestDeadlinesEndCallsAndNotTheStream(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(echo)
		require.NoError(t, s.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		_, err := s.Read(make([]byte, 1))
		require.Equal(t, os.ErrDeadlineExceeded, err)
		_, err = s.Read(make([]byte, 1))
		require.Equal(t, os.ErrDeadlineExceeded, err, "until it is moved")
		require.NoError(t, s.SetReadDeadline(time.Time{}))

		require.NoError(t, s.SetWriteDeadline(time.Now().Add(-time.Second)))
		_, err = s.Write([]byte("x"))
		require.Equal(t, os.ErrDeadlineExceeded, err)
		require.Equal(t, os.ErrDeadlineExceeded, s.CloseWrite())
		require.NoError(t, s.SetWriteDeadline(time.Time{}))

		// The echo stops reading when nobody reads it. A Write that its deadline ended has sent the bytes it counts.
		sent := make([]byte, 8<<20) // more than all windows and buffers on the way and back
		_, _ = rand.Read(sent)
		total := 0
		for range 20 {
			require.NoError(t, s.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
			n, err := s.Write(sent[total:])
			total += n
			if err != nil {
				require.Equal(t, os.ErrDeadlineExceeded, err)
			}
		}
		require.Less(t, total, len(sent))
		require.NoError(t, s.SetWriteDeadline(time.Time{}))
		wrote := inBackground(func() error {
			_, err := s.Write(sent[total:])
			return errors.Join(err, s.CloseWrite())
		})
		got := make([]byte, 0, len(sent))
		for buf := make([]byte, 100_000); ; { // with deadlines that pass in the midst of frames
			require.NoError(t, s.SetReadDeadline(time.Now().Add(time.Millisecond)))
			n, err := s.Read(buf)
			got = append(got, buf[:n]...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				require.Equal(t, os.ErrDeadlineExceeded, err)
			}
		}
		require.NoError(t, receive(t, wrote))
		require.True(t, bytes.Equal(sent, got), "sent %d bytes, got %d", len(sent), len(got))
	})
}

func TestStreamIsANetConn(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		path := buildSocket(t)
		ln, err := net.Listen("unix", path)
		if err != nil {
			return nil, nil, nil, err
		}
		defer ln.Close()
		stream, err := conn.DialUnix(sshtest.Within(t), path) // mux/relay has this test of a relay's sockets
		if err != nil {
			return nil, nil, nil, err
		}
		peer, err := ln.Accept()
		if err != nil {
			return nil, nil, nil, err
		}
		return stream, peer, func() { stream.Close(); peer.Close() }, nil
	})
}

func TestSlowReaderDoesNotStallItsSibling(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		r.open(flood) // never read: its window fills up
		s := r.open(echo)
		for range 50 {
			_, err := s.Write([]byte("ping"))
			require.NoError(t, err)
			buf := make([]byte, 4)
			_, err = io.ReadFull(s, buf)
			require.NoError(t, err)
			require.Equal(t, "ping", string(buf))
		}
	})
}

func TestCloseOfTheConnectionWakesItsStreams(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(silent)
		read := inBackground(func() error {
			_, err := s.Read(make([]byte, 1))
			return err
		})
		require.NoError(t, r.conn.Close())
		require.ErrorIs(t, receive(t, read), mux.ErrClosed)
		require.ErrorIs(t, r.conn.Err(), mux.ErrClosed)
		require.NoError(t, r.conn.Close(), "again")
	})
}

// Symptom: a stream of which a part was read, and that nobody closed, held Close up for ever.
func TestCloseOfTheConnectionDoesNotWaitForReaders(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(flood)
		_, err := s.Read(make([]byte, 1)) // the rest is still there
		require.NoError(t, err)
		require.NoError(t, receive(t, inBackground(r.conn.Close)))
		_, err = io.Copy(io.Discard, s)
		require.ErrorIs(t, err, mux.ErrClosed)
	})
}

func TestShutdownWaitsForReadersUntilItsContextEnds(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := start(t, conn, "head -c 100000 /dev/zero", nil)
	_, err := p.Read(make([]byte, 1))
	require.NoError(t, err)
	down := inBackground(func() error { return conn.Shutdown(sshtest.Within(t)) })
	eventually(t, func() bool { return conn.Err() != nil })
	rest, err := io.Copy(io.Discard, p)
	require.NoError(t, err)
	require.EqualValues(t, 99_999, rest)
	require.NoError(t, receive(t, down))

	conn = dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p = start(t, conn, "head -c 100000 /dev/zero", nil)
	_, err = p.Read(make([]byte, 1))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("it took too long"))
	defer cancel()
	require.EqualError(t, conn.Shutdown(ctx), "it took too long")
}

func TestDialUnixToAMissingSocketIsAnErrorAndNoHarm(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		_, err := conn.DialUnix(sshtest.Within(t), sshtest.SocketDir(t)+"/missing.sock")
		require.Error(t, err)
		_, err = conn.DialUnix(sshtest.Within(t), "/tmp/a\x00b")
		require.ErrorContains(t, err, "NUL")
		require.NoError(t, conn.Err())
		stream, err := conn.DialUnix(sshtest.Within(t), listen(t, echo))
		require.NoError(t, err)
		require.NoError(t, stream.Close())
		eventually(t, func() bool { return conn.Stat().Streams == 0 })
	})
}

func TestDialReachesATCPPortSeenFromTheVM(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		stream, err := dial(t, s).Dial(sshtest.Within(t), "tcp", s.Addr)
		require.NoError(t, err)
		banner := make([]byte, 4)
		_, err = io.ReadFull(stream, banner)
		require.NoError(t, err)
		require.Equal(t, "SSH-", string(banner))
		require.NoError(t, stream.Close())
	})
}

func TestIdleStreamHasNoWriterGoroutine(t *testing.T) {
	onStreams(t, func(t *testing.T, r *rig) {
		s := r.open(echo)
		for _, message := range []string{"one", "two"} {
			_, err := s.Write([]byte(message))
			require.NoError(t, err)
			got := make([]byte, len(message))
			_, err = io.ReadFull(s, got)
			require.NoError(t, err)
			require.Equal(t, message, string(got))
			eventually(t, func() bool { return !running("mux.(*channelStream).send") })
		}
	})
}

func TestClosedStreamReadsNothingOfAnother(t *testing.T) {
	// Symptom: a Read of a stream that was being closed returned bytes that another stream wrote at that moment.
	onStreams(t, func(t *testing.T, r *rig) {
		const secret = "SECRET of another"
		sent := bytes.Repeat([]byte{'a'}, 256<<10)
		closed, other := r.open(echo), r.open(echo)
		wrote := inBackground(func() error { _, err := closed.Write(sent); return err })
		got := make([]byte, 64<<10)
		_, err := io.ReadFull(closed, got) // large pieces
		require.NoError(t, err)
		_, err = closed.Read(got[:1])
		require.NoError(t, err)
		require.NoError(t, closed.Close())
		_ = receive(t, wrote)
		for range 20 {
			message := bytes.Repeat([]byte(secret), 1000)
			_, err = other.Write(message)
			require.NoError(t, err)
			_, err = io.ReadFull(other, make([]byte, len(message)))
			require.NoError(t, err)
		}
		n, err := closed.Read(got)
		require.ErrorIs(t, err, io.ErrClosedPipe)
		require.Zero(t, n)
	})
}

// running reports whether a goroutine is in the function.
func running(function string) bool {
	stacks := make([]byte, 1<<20)
	return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(function))
}
