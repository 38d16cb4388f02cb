package mux_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/mux"
)

// stalled is the SSH library after the server's disconnect message, on a machine that is busy: it takes a second to end
// its channels, and another to tell its reason.
type stalled struct {
	ssh.Conn
	life   context.Context // of the test
	chans  chan ssh.NewChannel
	reqs   chan *ssh.Request
	closed chan struct{} // once its channels have ended
}

func (s *stalled) end() {
	_ = pause.For(s.life, time.Second)
	close(s.chans)
	close(s.reqs)
	close(s.closed)
}

func (s *stalled) OpenChannel(string, []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	return nil, nil, io.EOF
}

func (s *stalled) ServerVersion() []byte { return []byte("SSH-2.0-OpenSSH_stalled") }

func (s *stalled) SendRequest(string, bool, []byte) (bool, []byte, error) {
	<-s.closed
	return false, nil, io.EOF
}

func (s *stalled) Wait() error {
	<-s.closed
	_ = pause.For(s.life, time.Second)
	return errors.New("ssh: disconnect, reason 11: the VM goes down")
}

// After 5 ms the end of the connection was not taken for one, and after 100 ms the server was said to have broken the
// protocol.
func TestTheReasonForAConnectionsEndIsToldAlsoByAMachineThatIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		lib := &stalled{
			life: t.Context(), chans: make(chan ssh.NewChannel), reqs: make(chan *ssh.Request), closed: make(chan struct{}),
		}
		conn := mux.ConnOf(near, lib, lib.chans, lib.reqs)
		defer conn.Close()
		go lib.end() // it ends with the test's wait for the reason
		_, err := conn.DialUnix(t.Context(), "/run/x.sock")
		require.True(t, mux.IsLost(err), "%v", err)
		require.ErrorContains(t, err, "the VM goes down")
		require.ErrorContains(t, conn.Err(), "the VM goes down")

		_, err = conn.Ping(t.Context())
		require.True(t, mux.IsLost(err), "%v", err)
	})
}
