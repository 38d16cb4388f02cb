package stockmanager

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// serving is a shell that runs `steps serve`, in a session.
type serving struct {
	stdin  io.WriteCloser
	socket string        // the path in the ready marker
	ended  chan struct{} // closed when the shell or its connection has ended
	once   sync.Once
}

// stop ends the shell's stdin. The shell then ends serve, waits for it and removes the directory. stop does not wait.
func (s *serving) stop() { s.once.Do(func() { s.stdin.Close() }) }

// serve starts the shell and waits for the ready marker until ctx ends. The end of serve alone is not noticed, because
// the shell goes on.
func (m *Manager) serve(ctx context.Context, client *ssh.Client, log io.Writer) (*serving, error) {
	session, err := client.NewSession()
	if err != nil {
		return nil, err
	}
	s := &serving{ended: make(chan struct{})}
	if s.stdin, err = session.StdinPipe(); err != nil {
		return nil, err
	}
	marker := &markerWriter{log: log, socket: make(chan string, 1)}
	session.Stdout, session.Stderr = marker, log
	line := fmt.Sprintf(
		`dir=$(mktemp -d %s/step-runner.XXXXXXXX) || exit 1; `+
			`trap 'kill ${srv:-} 2>/dev/null; rm -rf "$dir"' EXIT INT TERM HUP; `+
			`%s steps serve --socket "$dir/step-runner.sock" 2>&1 & srv=$!; cat >/dev/null; `+
			`kill $srv 2>/dev/null; wait $srv 2>/dev/null`,
		cmp.Or(m.Temp, "/tmp"), quote(cmp.Or(m.Runner, "gitlab-runner")))
	if err := session.Start(line); err != nil {
		return nil, err
	}
	var status error
	go func() {
		defer close(s.ended)
		status = session.Wait()
	}()
	select {
	case s.socket = <-marker.socket:
		return s, nil
	case <-s.ended:
		return nil, errors.Join(errors.New("serve ended before it was ready"), status)
	case <-ctx.Done():
		s.stop()
		client.Close()
		<-s.ended
		return nil, context.Cause(ctx)
	}
}

var readyMarker = []byte("step-runner is listening on socket ")

// markerWriter writes serve's output to the log, and finds the first ready marker in it.
type markerWriter struct {
	log    io.Writer
	socket chan string // gets the marker's path
	text   []byte
	found  bool
}

// Write implements io.Writer.
func (w *markerWriter) Write(p []byte) (int, error) {
	if !w.found {
		w.text = append(w.text, p...)
		if _, after, ok := bytes.Cut(w.text, readyMarker); ok {
			if path, _, ended := bytes.Cut(after, []byte{'\n'}); ended {
				w.found = true
				w.socket <- string(path)
			}
		}
	}
	return w.log.Write(p)
}

// dialProxy starts `steps proxy` in a session: a bridge to the socket. When the bridge ends, serve ends too.
func (m *Manager) dialProxy(client *ssh.Client, s *serving, log io.Writer) (net.Conn, error) {
	session, err := client.NewSession()
	if err != nil {
		return nil, err
	}
	c := &bridge{session: session, serve: s}
	if c.Writer, err = session.StdinPipe(); err != nil {
		return nil, err
	}
	if c.Reader, err = session.StdoutPipe(); err != nil {
		return nil, err
	}
	session.Stderr = log
	return c, session.Start(quote(cmp.Or(m.Runner, "gitlab-runner")) + " steps proxy --socket " + quote(s.socket))
}

// bridge is the connection through a proxy.
type bridge struct {
	io.Reader
	io.Writer
	session *ssh.Session
	serve   *serving
}

// Close implements net.Conn.
func (b *bridge) Close() error {
	err := b.session.Close()
	b.serve.stop()
	return err
}

type address struct{}

func (address) Network() string { return "stdio" }
func (address) String() string  { return "stdio" }

// LocalAddr implements net.Conn.
func (*bridge) LocalAddr() net.Addr { return address{} }

// RemoteAddr implements net.Conn.
func (*bridge) RemoteAddr() net.Addr { return address{} }

// SetDeadline implements net.Conn, as does each of the following.
func (*bridge) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline is SetDeadline.
func (*bridge) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline is SetDeadline.
func (*bridge) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }
