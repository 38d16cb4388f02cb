package faultconn_test

import (
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"github.com/stepmux/stepmux/internal/testing/faultconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tcpPair returns both ends of a TCP connection.
func tcpPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	near, err = net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	far, err = listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// bubble runs a test with fake time, on a pipe whose near end has faults.
func bubble(t *testing.T, config faultconn.Config, test func(t *testing.T, near *faultconn.Conn, far net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, far := net.Pipe()
		near := faultconn.New(a, config)
		defer far.Close()
		defer near.Cut()
		test(t, near, far)
	})
}

func read(t *testing.T, r io.Reader, n int) string {
	t.Helper()
	buf := make([]byte, n)
	_, err := io.ReadFull(r, buf)
	require.NoError(t, err)
	return string(buf)
}

func send(t *testing.T, w io.Writer, s string) {
	t.Helper()
	_, err := io.WriteString(w, s)
	require.NoError(t, err)
}

func TestConnIsANetConn(t *testing.T) {
	for name, config := range map[string]faultconn.Config{
		"no faults": {},
		"far away":  {Delay: time.Millisecond},
		"slow":      {Bandwidth: 100 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				a, b := tcpPair(t)
				near, far := faultconn.New(a, config), faultconn.New(b, faultconn.Config{})
				return near, far, func() { _, _ = near.Close(), far.Close() }, nil
			})
		})
	}
}

func TestDelayPostponesEachDirectionOnce(t *testing.T) {
	const delay = 50 * time.Millisecond
	bubble(t, faultconn.Config{Delay: delay}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		start := time.Now()
		send(t, near, "ping")
		require.Zero(t, time.Since(start), "a write does not wait")
		require.Equal(t, "ping", read(t, far, 4))
		require.Equal(t, delay, time.Since(start))
		send(t, far, "pong")
		require.Equal(t, "pong", read(t, near, 4))
		require.Equal(t, 2*delay, time.Since(start))
	})
}

func TestDelaysDoNotAddUp(t *testing.T) {
	const delay = 50 * time.Millisecond
	bubble(t, faultconn.Config{Delay: delay}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		start := time.Now()
		sent := make([]byte, 1<<20)
		_, _ = rand.Read(sent)
		for chunk := range slices.Chunk(sent, 1000) {
			_, err := near.Write(chunk)
			require.NoError(t, err)
		}
		require.True(t, string(sent) == read(t, far, len(sent)))
		require.Equal(t, delay, time.Since(start))
	})
}

func TestLaterBytesArriveLater(t *testing.T) {
	bubble(t, faultconn.Config{Delay: time.Second}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		start := time.Now()
		send(t, near, "a")
		<-time.NewTimer(300 * time.Millisecond).C
		send(t, near, "b")
		require.Equal(t, "a", read(t, far, 1))
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, "b", read(t, far, 1))
		require.Equal(t, 1300*time.Millisecond, time.Since(start))
	})
}

func TestBandwidthSpreadsBytesOverTime(t *testing.T) {
	const size = 1 << 20
	config := faultconn.Config{Bandwidth: size, Delay: time.Second}
	bubble(t, config, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		start := time.Now()
		send(t, near, string(make([]byte, 2*size)))
		read(t, far, size)
		require.Equal(t, 2*time.Second, time.Since(start))
		read(t, far, size)
		require.Equal(t, 3*time.Second, time.Since(start))
	})
}

func TestBufferLimitsBytesInFlight(t *testing.T) {
	const delay = time.Second
	bubble(t, faultconn.Config{Delay: delay, Buffer: 100}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, far) }()
		start := time.Now()
		send(t, near, string(make([]byte, 100)))
		require.Zero(t, time.Since(start))
		send(t, near, string(make([]byte, 100)))
		require.Equal(t, delay, time.Since(start))
	})
}

func TestStallHoldsBothDirectionsBack(t *testing.T) {
	bubble(t, faultconn.Config{}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		near.Stall()
		send(t, near, "out")
		send(t, far, "in")
		soon := time.Now().Add(time.Hour)
		require.NoError(t, near.SetReadDeadline(soon))
		require.NoError(t, far.SetReadDeadline(soon))
		for _, end := range []net.Conn{near, far} {
			_, err := end.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		require.NoError(t, near.SetReadDeadline(time.Time{}))
		require.NoError(t, far.SetReadDeadline(time.Time{}))
		near.Resume()
		require.Equal(t, "out", read(t, far, 3))
		require.Equal(t, "in", read(t, near, 2))
	})
}

func TestStalledWriterWaitsWhenTheBufferIsFull(t *testing.T) {
	bubble(t, faultconn.Config{Buffer: 10}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		near.Stall()
		require.NoError(t, near.SetWriteDeadline(time.Now().Add(time.Minute)))
		n, err := near.Write(make([]byte, 20))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, 10, n)
	})
}

func TestCutAfterWriteLetsExactlySoManyBytesThrough(t *testing.T) {
	bubble(t, faultconn.Config{CutAfterWrite: 7}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		send(t, near, "0123456789")
		got, err := io.ReadAll(far)
		require.NoError(t, err)
		require.Equal(t, "0123456", string(got))
		_, err = near.Write([]byte("x"))
		require.ErrorIs(t, err, faultconn.ErrCut)
	})
}

func TestCutAfterReadLetsExactlySoManyBytesThrough(t *testing.T) {
	bubble(t, faultconn.Config{CutAfterRead: 7}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		n, err := far.Write([]byte("0123456789"))
		require.Error(t, err)
		require.Equal(t, 7, n)
		got, err := io.ReadAll(near)
		require.ErrorIs(t, err, faultconn.ErrCut)
		require.Equal(t, "0123456", string(got))
	})
}

func TestCutWakesReadersAndWriters(t *testing.T) {
	bubble(t, faultconn.Config{Buffer: 10}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		errs := make(chan error, 2)
		go func() {
			_, err := near.Read(make([]byte, 1))
			errs <- err
		}()
		go func() {
			_, err := near.Write(make([]byte, 1000))
			errs <- err
		}()
		synctest.Wait()
		near.Cut()
		near.Cut()
		require.ErrorIs(t, <-errs, faultconn.ErrCut)
		require.ErrorIs(t, <-errs, faultconn.ErrCut)
		_, err := io.ReadAll(far)
		require.NoError(t, err)
		require.NoError(t, near.Close())
	})
}

func TestCutResetsATCPConnection(t *testing.T) {
	a, far := tcpPair(t)
	near := faultconn.New(a, faultconn.Config{})
	near.Cut()
	_, err := io.ReadAll(far)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.NoError(t, near.Close())
}

func TestEndArrivesAfterTheBytesBeforeIt(t *testing.T) {
	bubble(t, faultconn.Config{Delay: time.Second}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		start := time.Now()
		send(t, far, "last")
		require.NoError(t, far.Close())
		got, err := io.ReadAll(near)
		require.NoError(t, err)
		require.Equal(t, "last", string(got))
		require.Equal(t, time.Second, time.Since(start))
		_, err = near.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "it stays ended")
	})
}

func TestCloseDeliversBytesInFlight(t *testing.T) {
	bubble(t, faultconn.Config{Delay: time.Second}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		start := time.Now()
		got := make(chan string, 1)
		go func() {
			all, _ := io.ReadAll(far)
			got <- string(all)
		}()
		send(t, near, "last words")
		require.NoError(t, near.Close())
		require.NoError(t, near.Close())
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, "last words", <-got)
		_, err := near.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = near.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestCloseDoesNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	bubble(t, faultconn.Config{Delay: time.Second}, func(t *testing.T, near *faultconn.Conn, _ net.Conn) {
		start := time.Now()
		send(t, near, "unread")
		require.NoError(t, near.Close())
		require.Equal(t, 2*time.Second, time.Since(start), "the delay and the grace")
	})
}

func TestCloseOfAStalledConnectionDoesNotWait(t *testing.T) {
	bubble(t, faultconn.Config{Delay: time.Second}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		start := time.Now()
		send(t, near, "lost")
		near.Stall()
		require.NoError(t, near.Close())
		require.Zero(t, time.Since(start))
		got, err := io.ReadAll(far)
		require.NoError(t, err)
		require.Empty(t, got)
	})
}

func TestWriteReportsThatThePeerIsGone(t *testing.T) {
	bubble(t, faultconn.Config{}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		require.NoError(t, far.Close())
		send(t, near, "into the void")
		synctest.Wait()
		_, err := near.Write([]byte("x"))
		require.True(t, errors.Is(err, io.ErrClosedPipe), "%v", err)
	})
}

// Symptom: bytes that were sent while a link was slow for a second were delayed for many more.
func TestBytesThatWaitForBandwidthLeaveWithTheNewOne(t *testing.T) {
	const size = 1 << 20
	config := faultconn.Config{Bandwidth: size, Delay: time.Second}
	bubble(t, config, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		start := time.Now()
		send(t, near, string(make([]byte, 5*size)))
		read(t, far, size)
		require.Equal(t, 2*time.Second, time.Since(start))
		near.Reshape(0, 4*size)
		read(t, far, size)
		require.Equal(t, 3*time.Second, time.Since(start), "it was on its way")
		read(t, far, 3*size)
		require.Equal(t, 3750*time.Millisecond, time.Since(start))
	})
}

func TestReshapeChangesLaterBytes(t *testing.T) {
	bubble(t, faultconn.Config{Delay: time.Second}, func(t *testing.T, near *faultconn.Conn, far net.Conn) {
		near.Reshape(time.Minute, 0)
		begin := time.Now()
		send(t, near, "late")
		require.Equal(t, "late", read(t, far, 4))
		require.Equal(t, time.Minute, time.Since(begin))
		near.Reshape(0, 0)
		begin = time.Now()
		send(t, near, "soon")
		require.Equal(t, "soon", read(t, far, 4))
		require.Zero(t, time.Since(begin))
	})
}
