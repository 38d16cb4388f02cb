package relay_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux/channel"
	"github.com/stepmux/stepmux/mux/relay"
)

func TestMain(m *testing.M) { runnertest.Main(m) }

// host is a relay's program as a process of this machine, without SSH.
type host struct {
	relay *relay.Relay
	tmp   string // its directory for temporary files
	pipe  *pipe
	cmd   *exec.Cmd
	exit  chan error
}

// pipe is the Duplex of a process, which can be frozen.
type pipe struct {
	io.WriteCloser // its stdin
	io.Reader      // its stdout

	mu     sync.Mutex
	thawed sync.Cond
	frozen bool
	closed bool
}

func (p *pipe) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if p.await() {
		return 0, io.ErrClosedPipe
	}
	return n, err
}

func (p *pipe) Write(b []byte) (int, error) {
	if p.await() {
		return 0, io.ErrClosedPipe
	}
	return p.WriteCloser.Write(b)
}

// await waits while the pipe is frozen, and reports whether it is closed.
func (p *pipe) await() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.frozen && !p.closed {
		p.thawed.Wait()
	}
	return p.closed
}

func (p *pipe) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

func (p *pipe) CloseWrite() error { return p.WriteCloser.Close() }

func (p *pipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.thawed.Broadcast()
	return p.WriteCloser.Close() // its stdout ends with the program
}

// start starts a relay's program and the Relay of it.
func start(t testing.TB) *host {
	t.Helper()
	tmp, err := os.MkdirTemp("", "r") //nolint:usetesting // short enough for sockets
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	argv := append(runnertest.Command(t), "steps", "relay", "--temp-dir", tmp, "--grace", "200ms")
	h := &host{tmp: tmp, cmd: exec.Command(argv[0], argv[1:]...), exit: make(chan error, 1)}
	stdin, err := h.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, w, err := os.Pipe()
	require.NoError(t, err)
	h.cmd.Stdout = w
	require.NoError(t, h.cmd.Start())
	w.Close()
	go func() { h.exit <- h.cmd.Wait() }()
	h.pipe = &pipe{WriteCloser: stdin, Reader: stdout}
	h.pipe.thawed.L = &h.pipe.mu
	h.relay, err = relay.New(sshtest.Within(t), h.pipe, relay.Config{Exit: func(ctx context.Context) error {
		select {
		case err := <-h.exit:
			h.exit <- err
			if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
				return &channel.ExitError{Status: failed.ExitCode()}
			}
		case <-ctx.Done():
		}
		return nil
	}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, h.relay.Close())
		<-h.exit
		stdout.Close()
	})
	return h
}

// conn is a Stream or a Process.
type conn interface {
	net.Conn
	CloseWrite() error
}

// onRoutes runs test over each kind of stream. open starts a peer that sends back what it gets.
func onRoutes(t *testing.T, test func(t *testing.T, h *host, open func() conn)) {
	t.Run("process", func(t *testing.T) {
		h := start(t)
		test(t, h, func() conn {
			p, err := h.relay.Start(sshtest.Within(t), channel.Command{Line: "exec cat"})
			require.NoError(t, err)
			t.Cleanup(func() { p.Close() })
			return p
		})
	})
	t.Run("socket", func(t *testing.T) {
		h := start(t)
		test(t, h, func() conn {
			s, peer := connect(t, h)
			go func() {
				_, _ = io.Copy(peer, peer)
				peer.Close()
			}()
			return s
		})
	})
}

// connect returns both ends of a connection to a socket of a build's.
func connect(t testing.TB, h *host) (*channel.Stream, net.Conn) {
	t.Helper()
	path := runnertest.BuildSocket(t, h.tmp)
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer ln.Close()
	s, err := h.relay.DialUnix(sshtest.Within(t), path)
	require.NoError(t, err)
	peer, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Close()
		peer.Close()
	})
	return s, peer
}

func TestRelayOverAPipeCarriesBytesUnchanged(t *testing.T) {
	onRoutes(t, func(t *testing.T, _ *host, open func() conn) {
		s := open()
		sent := make([]byte, 5<<20+17) // more than a window
		_, _ = rand.Read(sent)
		wrote := make(chan error, 1)
		go func() {
			_, err := s.Write(sent)
			wrote <- errors.Join(err, s.CloseWrite())
		}()
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.NoError(t, <-wrote)
		require.True(t, bytes.Equal(sent, got))
	})
}

func TestRelayOverAPipeKeepsStderrAndExitApart(t *testing.T) {
	h := start(t)
	var stderr bytes.Buffer
	p, err := h.relay.Start(sshtest.Within(t), channel.Command{
		Argv: []string{"sh", "-c", "cat; echo err >&2; exit 7"}, Input: []byte("first "), Stderr: &stderr,
	})
	require.NoError(t, err)
	_, err = p.Write([]byte("last"))
	require.NoError(t, err)
	require.NoError(t, p.CloseWrite())
	out, err := io.ReadAll(p)
	require.NoError(t, err)
	require.Equal(t, "first last", string(out))
	exit := (*channel.ExitError)(nil)
	require.ErrorAs(t, p.Wait(sshtest.Within(t)), &exit)
	require.Equal(t, 7, exit.Status)
	require.Equal(t, "err\n", stderr.String())
	require.Equal(t, "exec sh", p.RemoteAddr().Network()+" "+p.RemoteAddr().String())
	require.NotEmpty(t, h.relay.Program().Version)

	refused := (*relay.RefusedError)(nil)
	_, err = h.relay.DialUnix(sshtest.Within(t), "/var/run/docker.sock")
	require.ErrorAs(t, err, &refused)
	require.Equal(t, relay.RefusedForbidden, refused.Reason)
}

func TestRelayOverAPipeWakesCallsOnAFrozenLink(t *testing.T) {
	onRoutes(t, func(t *testing.T, h *host, open func() conn) {
		s := open()
		h.pipe.freeze()
		wrote := sshtest.InBlockedCall(t, func() error {
			for {
				if _, err := s.Write(make([]byte, 10_000)); err != nil {
					return err
				}
			}
		})
		require.NoError(t, s.SetDeadline(time.Now().Add(200*time.Millisecond)))
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.ErrorIs(t, <-wrote, os.ErrDeadlineExceeded)
		require.NoError(t, s.SetDeadline(time.Time{}))
		read := sshtest.InBlockedCall(t, func() error {
			_, err := s.Read(make([]byte, 1))
			return err
		})
		wrote = sshtest.InBlockedCall(t, func() error {
			_, err := s.Write(make([]byte, 8<<20))
			return err
		})
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-read, net.ErrClosed)
		require.ErrorIs(t, <-wrote, net.ErrClosed)
		require.Zero(t, h.relay.Streams())
	})
}

func TestRelayOverAPipeThatDiesIsARelayError(t *testing.T) {
	onRoutes(t, func(t *testing.T, h *host, open func() conn) {
		s := open()
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGKILL))
		_, err := s.Read(make([]byte, 1))
		failed := (*relay.Error)(nil)
		require.ErrorAs(t, err, &failed)
		require.NotErrorIs(t, err, io.EOF)
		<-h.relay.Done()
		require.Error(t, h.relay.Err())
		_, err = h.relay.Start(sshtest.Within(t), channel.Command{Line: "true"})
		require.ErrorAs(t, err, &failed)
	})
}

func TestCloseOfARelayOverAPipeEndsItsProcesses(t *testing.T) {
	h := start(t)
	p, err := h.relay.Start(sshtest.Within(t), channel.Command{Line: "exec sleep 600"})
	require.NoError(t, err)
	require.NoError(t, h.relay.Close())
	failed := (*relay.Error)(nil)
	require.ErrorAs(t, p.Wait(sshtest.Within(t)), &failed)
	select {
	case err := <-h.exit:
		h.exit <- err
	case <-sshtest.Within(t).Done():
		t.Fatal("the program goes on")
	}
}

func TestWhatIsNoRelayIsAnErrorThatSaysWhatItPrinted(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() {
		_, _ = io.Copy(theirs, strings.NewReader("Welcome to Debian\n"))
		theirs.Close()
	}()
	_, err := relay.New(sshtest.Within(t), halfPipe{ours}, relay.Config{})
	failed := (*relay.Error)(nil)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "start", failed.Op)
	require.ErrorContains(t, err, "Welcome to Debian")

	ours, theirs = net.Pipe()
	defer theirs.Close()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("too slow"))
	defer cancel()
	_, err = relay.New(ctx, halfPipe{ours}, relay.Config{})
	require.ErrorContains(t, err, "too slow")
}

// Symptom: Conn.Close did not wait for the goroutine that read from a program that was no relay.
func TestFailedStartTellsOfTheGoroutinesThatItLeaves(t *testing.T) {
	carrier := &deafCarrier{reading: make(chan struct{}), release: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-carrier.reading
		cancel()
	}()
	gone := make(chan struct{})
	_, err := relay.New(ctx, carrier, relay.Config{Leftover: func(wait func()) {
		go func() {
			wait()
			close(gone)
		}()
	}})
	require.ErrorIs(t, err, context.Canceled)
	select {
	case <-gone:
		t.Fatal("Read has not returned")
	case <-time.After(50 * time.Millisecond): //nolint:forbidigo // a wait that returns early would by then
	}
	close(carrier.release)
	select {
	case <-gone:
	case <-sshtest.Within(t).Done():
		t.Fatal("wait goes on after Read has returned")
	}
}

// deafCarrier is a Duplex whose Read returns some time after Close, as that of an SSH channel.
type deafCarrier struct {
	once             sync.Once
	reading, release chan struct{}
}

func (c *deafCarrier) Read([]byte) (int, error) {
	c.once.Do(func() { close(c.reading) })
	<-c.release
	return 0, io.EOF
}

func (*deafCarrier) Write(p []byte) (int, error) { return len(p), nil }
func (*deafCarrier) CloseWrite() error           { return nil }
func (*deafCarrier) Close() error                { return nil }

type halfPipe struct{ net.Conn }

func (halfPipe) CloseWrite() error { return nil }

func TestStreamOfARelayOverAPipeIsANetConn(t *testing.T) {
	h := start(t)
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		s, peer := connect(t, h)
		return s, peer, func() { s.Close(); peer.Close() }, nil
	})
}
