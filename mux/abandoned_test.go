package mux_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/mux"
)

// silentLibrary is the SSH library on a connection to a server that runs each command and never reads its stdin.
type silentLibrary struct {
	ssh.Conn
	channel silentChannel
}

func (l *silentLibrary) OpenChannel(string, []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	return &l.channel, l.channel.reqs, nil
}

func (*silentLibrary) SendRequest(string, bool, []byte) (bool, []byte, error) { return false, nil, nil }
func (*silentLibrary) Wait() error                                            { return io.EOF }
func (*silentLibrary) ServerVersion() []byte                                  { return []byte("SSH-2.0-Go") }

type silentChannel struct {
	ssh.Channel
	reqs   chan *ssh.Request
	ended  chan struct{}
	stderr *io.PipeReader
}

func (*silentChannel) SendRequest(string, bool, []byte) (bool, error) { return true, nil }
func (c *silentChannel) Stderr() io.ReadWriter                        { return stderrOnly{Reader: c.stderr} }
func (*silentChannel) Close() error                                   { return nil }

func (c *silentChannel) Write([]byte) (int, error) {
	<-c.ended
	return 0, io.EOF
}

type stderrOnly struct {
	io.Reader
	io.Writer
}

// counter counts the calls of Write.
type counter struct{ writes atomic.Int32 }

func (c *counter) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return len(p), nil
}

// Symptom: the caller of a Start that was given up read the buffer of its Stderr while the process still wrote to it.
func TestStderrIsNotWrittenAfterAStartThatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		stderr, says := io.Pipe()
		lib := &silentLibrary{channel: silentChannel{
			reqs: make(chan *ssh.Request), ended: make(chan struct{}), stderr: stderr,
		}}
		chans, reqs := make(chan ssh.NewChannel), make(chan *ssh.Request)
		conn := mux.ConnOf(near, lib, chans, reqs)
		ctx, cancel := context.WithCancel(t.Context())
		to := &counter{}
		started := inBackground(func() error {
			_, err := conn.Start(ctx, mux.Command{Line: "x", Input: []byte("input"), Stderr: to})
			return err
		})
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-started, context.Canceled)
		go func() { // ends with says
			_, _ = says.Write([]byte("late"))
		}()
		synctest.Wait()
		written := to.writes.Load()

		says.Close()
		stderr.Close()
		close(lib.channel.ended)
		close(lib.channel.reqs)
		close(chans)
		close(reqs)
		require.NoError(t, conn.Close())
		require.Zero(t, written)
	})
}
