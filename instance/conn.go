package instance

import (
	"context"
	"io"
	"net"

	"github.com/stepmux/stepmux/connector/script"
	"github.com/stepmux/stepmux/mux"
)

// CommandConn is a connection to a command's standard input and output. Close ends the command: SIGTERM to its
// process group on the instance, Config.Grace, SIGKILL; it waits until the command is gone, at most a second longer
// than the grace. Read returns io.EOF when the command's output ends; Wait returns how the command ended.
//
// It also has these methods of [script.Running]: Read, Write, CloseWrite, Signal, SetDeadline, SetReadDeadline and
// SetWriteDeadline. CloseWrite and Signal are for a command of [Client.Start].
type CommandConn struct {
	*running
	clientConn
}

type running = script.Running

var _ net.Conn = (*CommandConn)(nil)

// Wait waits until the command or ctx has ended. It returns nil for exit code 0, and for another a [*BuildError] with
// that code and the reason ScriptFailure. Unread output may delay the end. It may be called several times, and
// concurrently.
func (c *CommandConn) Wait(ctx context.Context) error {
	code, err := c.running.Wait(ctx)
	return classify(ctx, exitError(code, err))
}

// Close implements net.Conn. It returns nil.
func (c *CommandConn) Close() error { return c.end(c, c.running) }

// dialedConn is a connection to a server, with CloseWrite.
type dialedConn struct {
	*stream
	clientConn
}

type stream = mux.Stream

// LocalAddr implements net.Conn.
func (c *dialedConn) LocalAddr() net.Addr { return c.clientConn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *dialedConn) RemoteAddr() net.Addr { return c.clientConn.RemoteAddr() }

// Close implements net.Conn. It returns nil.
func (c *dialedConn) Close() error { return c.end(c, c.stream) }

// clientConn is the common part of connections that end with a Client.
type clientConn struct {
	owner  *Client
	remote clientAddr
}

// LocalAddr implements net.Conn: network "ssh" and the instance's ID.
func (c *clientConn) LocalAddr() net.Addr { return clientAddr{"ssh", c.owner.slot.placement.ID} }

// RemoteAddr implements net.Conn: the address that was dialed, or network "exec" and the command.
func (c *clientConn) RemoteAddr() net.Addr { return c.remote }

// end closes the stream of conn, and removes conn from its Client.
func (c *clientConn) end(conn, stream io.Closer) error {
	_ = stream.Close() // always nil
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	delete(c.owner.conns, conn)
	return nil
}

// clientAddr is a net.Addr.
type clientAddr struct{ network, text string }

func (a clientAddr) Network() string { return a.network }
func (a clientAddr) String() string  { return a.text }
