package mux_test

import (
	"context"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// through makes cfg's connections by way of jump.
func through(jump *mux.Conn, cfg *mux.Config) *mux.Config {
	cfg.DialNet = func(ctx context.Context, addr string) (net.Conn, error) { return jump.DialNet(ctx, addr) }
	return cfg
}

func TestDialThroughAnotherConnection(t *testing.T) {
	onServers(t, func(t *testing.T, bastion *sshtest.Server) {
		vm := sshtest.OpenSSH(t)
		jump := dial(t, bastion)
		conn, err := mux.Dial(sshtest.Within(t), vm.Addr, through(jump, config(vm)))
		require.NoError(t, err)
		require.Equal(t, 1, jump.Stat().Streams)
		p := start(t, conn, "cat; exit 3", nil)
		sent := make([]byte, 1<<20)
		done := inBackground(func() error {
			_, err := p.Write(sent)
			if err == nil {
				err = p.CloseWrite()
			}
			return err
		})
		got, err := io.ReadAll(p)
		require.NoError(t, err)
		require.Len(t, got, len(sent))
		require.NoError(t, receive(t, done))
		require.ErrorContains(t, p.Wait(sshtest.Within(t)), "exit status 3")

		// When the jump host's connection is lost, so are those through it.
		p = start(t, conn, "exec cat", nil)
		require.NoError(t, jump.Close())
		requireLost(t, p.Wait(sshtest.Within(t)))
		receive(t, conn.Done())
		require.NoError(t, conn.Close())
	})
}

func TestEndOfAConnectionLeavesItsJumpHostsConnection(t *testing.T) {
	bastion, vm := sshtest.OpenSSH(t), sshtest.OpenSSH(t)
	jump := dial(t, bastion)
	for range 3 {
		conn, err := mux.Dial(sshtest.Within(t), vm.Addr, through(jump, config(vm)))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	eventually(t, func() bool { return jump.Stat().Streams == 0 })
	require.NoError(t, jump.Err())
}

func TestDialThroughAHostThatForbidsItOrCannotReachIt(t *testing.T) {
	vm := sshtest.InProcess(t, embeddedvm.Config{})
	jump := dial(t, sshtest.OpenSSH(t, "AllowTcpForwarding no"))
	_, err := mux.Dial(sshtest.Within(t), vm.Addr, through(jump, config(vm)))
	requireStage(t, err, "connect", true)
	require.ErrorContains(t, err, "see AllowTcpForwarding")

	vm.Stop()
	jump = dial(t, sshtest.OpenSSH(t))
	_, err = mux.Dial(sshtest.Within(t), vm.Addr, through(jump, config(vm)))
	requireStage(t, err, "connect", false)
	require.ErrorContains(t, err, "the jump host cannot connect to it")
}

// A login that a jump host refuses is as permanent as one that the machine refuses.
func TestRefusalByAJumpHostIsPermanent(t *testing.T) {
	bastion, vm := sshtest.InProcess(t, embeddedvm.Config{}), sshtest.InProcess(t, embeddedvm.Config{})
	cfg := config(vm)
	cfg.DialNet = func(ctx context.Context, addr string) (net.Conn, error) {
		stranger, _ := sshtest.NewKey(t)
		wrong := config(bastion)
		wrong.Auth = []login.Auth{login.Key("stranger", stranger)}
		_, err := mux.Dial(ctx, bastion.Addr, wrong)
		return nil, err
	}
	_, err := mux.Dial(sshtest.Within(t), vm.Addr, cfg)
	requireStage(t, err, "connect", true)
	require.ErrorContains(t, err, bastion.Addr)
}

// noEmptyWrites is a connection that counts its empty writes.
type noEmptyWrites struct {
	net.Conn
	empty atomic.Int32
}

func (c *noEmptyWrites) Write(p []byte) (int, error) {
	if len(p) == 0 {
		c.empty.Add(1)
	}
	return c.Conn.Write(p)
}

// Before each packet came an empty write. A connection that carries messages, such as a WebSocket, sent it as one, and
// one of net.Pipe waited until it was read.
func TestAConnectionOfDialNetGetsNoEmptyWrites(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	cfg, nc := config(s), &noEmptyWrites{}
	cfg.DialNet = func(ctx context.Context, addr string) (_ net.Conn, err error) {
		nc.Conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
		return nc, err
	}
	p := start(t, dialWith(t, s, cfg), "exec wc -c", nil)
	_, err := p.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	require.NoError(t, p.CloseWrite())
	require.NoError(t, p.Wait(sshtest.Within(t)))
	require.Zero(t, nc.empty.Load())
}

// A goroutine of the library panicked, and ended the process of the caller.
func TestADialNetWithoutAConnectionIsAnError(t *testing.T) {
	cfg := config(sshtest.InProcess(t, embeddedvm.Config{}))
	cfg.DialNet = func(context.Context, string) (net.Conn, error) { return nil, nil }
	_, err := mux.Dial(sshtest.Within(t), "vm:22", cfg)
	requireStage(t, err, "connect", false)
	require.ErrorContains(t, err, "returned no connection")
}

func TestDialNetHasAddressesAndDeadlines(t *testing.T) {
	bastion, vm := sshtest.OpenSSH(t), sshtest.OpenSSH(t)
	nc, err := dial(t, bastion).DialNet(sshtest.Within(t), vm.Addr)
	require.NoError(t, err)
	require.Equal(t, vm.Addr, nc.RemoteAddr().String())
	require.Equal(t, bastion.Addr, nc.LocalAddr().String())
	require.Equal(t, "tcp", nc.RemoteAddr().Network())
	for _, set := range []func(time.Time) error{nc.SetDeadline, nc.SetReadDeadline, nc.SetWriteDeadline} {
		require.NoError(t, set(time.Now()))
	}
	_, err = nc.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, nc.Close())
}
