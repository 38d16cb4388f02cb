package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/coder/websocket"
)

// The protocol v5.channel.k8s.io: each binary message is a channel's number and a piece of that channel. On
// closeChannel the piece is the number of the channel that the sender closes.
const (
	subprotocol = "v5.channel.k8s.io"

	stdinChannel, stdoutChannel, stderrChannel, statusChannel = 0, 1, 2, 3
	closeChannel                                              = 255

	// maxPiece bounds the messages that we send. The API server and the kubelet copy each as a whole.
	maxPiece = 32 << 10
	// maxStatus bounds the last message, which reports how the command ended.
	maxStatus = 64 << 10
)

// stream is a command that is executed in a container, over a WebSocket. It implements execution.
type stream struct {
	ending
	conn   *websocket.Conn
	stderr io.Writer // never fails, never waits
	piece  io.Reader // the unread part of a message of stdout; nil between messages; owned by Read

	life context.Context // for the library's reads and writes; it ends with Close
	end  context.CancelFunc
}

// execute executes a command in a container of a pod. ctx bounds the start, and has no effect afterwards. The caller
// closes the stream.
func (c *Cluster) execute(ctx context.Context, pod, container string, stderr io.Writer, argv ...string) (
	execution, error,
) {
	op := "execute a command in pod " + pod
	query := url.Values{
		"container": {container}, "command": argv, "stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"},
	}
	at := c.url(c.podPath(pod)+"/exec", query)
	refused := errors.New("the API server refused WebSocket before")
	if !c.spdy.Load() {
		s, err := c.executeWebSocket(ctx, op, at, stderr)
		if err == nil {
			return s, nil
		}
		if _, ok := errors.AsType[*noWebSocketError](err); !ok {
			return nil, err
		}
		refused = err
	}
	s, err := c.executeSPDY(ctx, op, at, stderr)
	if err != nil {
		return nil, fmt.Errorf("%w (used SPDY because the API server refused WebSocket: %w)", err, refused)
	}
	if !c.spdy.Swap(true) {
		c.logger.Warn("the API server takes no WebSockets: execs go by SPDY", "error", refused)
	}
	return s, nil
}

// noWebSocketError says that the API server, or a proxy before it, does not take WebSockets of the protocol.
type noWebSocketError struct{ text string }

func (e *noWebSocketError) Error() string { return e.text }

// executeWebSocket is execute over a WebSocket.
func (c *Cluster) executeWebSocket(ctx context.Context, op, at string, stderr io.Writer) (*stream, error) {
	options := &websocket.DialOptions{HTTPClient: c.client, Subprotocols: []string{subprotocol}}
	conn, answer, err := websocket.Dial(ctx, at, options) //nolint:bodyclose // the library closes it, and keeps a part
	if err != nil {
		err = dialError(ctx, op, answer, err)
		if refused, ok := errors.AsType[*apiError](err); ok && refused.code/100 == 4 && !refused.said && !isPassing(err) {
			err = &noWebSocketError{refused.text}
		}
		return nil, err
	}
	if conn.Subprotocol() != subprotocol {
		_ = conn.CloseNow() // it is of no use
		return nil, &noWebSocketError{"the API server does not speak " + subprotocol}
	}
	conn.SetReadLimit(-1) // pieces are passed on as they come
	s := &stream{ending: ending{ended: make(chan struct{})}, conn: conn, stderr: stderr}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

// dialError returns the error of an exec that was refused. The library keeps the beginning of the answer.
func dialError(ctx context.Context, op string, answer *http.Response, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	case answer == nil || answer.Body == nil || answer.StatusCode == http.StatusSwitchingProtocols:
		return fmt.Errorf("%s: %w", op, foreign(err))
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxStatus)) // as much as can be read
	return answerError(op, answer, text)
}

// Read implements io.Reader. It returns io.EOF once the server has reported how the command ended.
func (s *stream) Read(p []byte) (int, error) {
	for s.piece == nil {
		if err := s.nextMessage(); err != nil {
			s.markEnded()
			return 0, err
		}
	}
	n, err := s.piece.Read(p)
	if errors.Is(err, io.EOF) {
		s.piece, err = nil, nil
	}
	if err != nil {
		err = s.cut(err)
	}
	return n, err
}

// nextMessage reads the next message. It stops at the piece if the message is of stdout.
func (s *stream) nextMessage() error {
	kind, message, err := s.conn.Reader(s.life)
	if err != nil {
		if s.told() != nil {
			return io.EOF
		}
		return s.cut(err)
	}
	var number [1]byte
	switch _, err := io.ReadFull(message, number[:]); {
	case err != nil && !errors.Is(err, io.EOF):
		return s.cut(err)
	case err != nil, kind != websocket.MessageBinary:
		return errors.New("the API server sent a message without a channel")
	}
	switch number[0] {
	case stdoutChannel:
		s.piece = message
		return nil
	case stderrChannel:
		_, err = io.Copy(s.stderr, message)
	case statusChannel:
		return s.readStatus(message)
	default: // another channel: the end of one, for example
		_, err = io.Copy(io.Discard, message)
	}
	if err != nil {
		return s.cut(err)
	}
	return nil
}

// readStatus reads the server's report about the command's end.
func (s *stream) readStatus(message io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(message, maxStatus+1))
	if err != nil {
		return s.cut(err)
	}
	return s.take(text)
}

// cut returns the error of a stream that ended without a status.
func (s *stream) cut(err error) error {
	if s.life.Err() != nil {
		return io.ErrClosedPipe
	}
	return fmt.Errorf("%w: %w", errNoStatus, foreign(err))
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	written := 0
	message := make([]byte, 0, min(len(p), maxPiece)+1)
	for written < len(p) {
		piece := p[written:min(len(p), written+maxPiece)]
		message = append(append(message[:0], stdinChannel), piece...)
		if err := s.conn.Write(s.life, websocket.MessageBinary, message); err != nil {
			return written, s.cut(err)
		}
		written += len(piece)
	}
	return written, nil
}

// CloseWrite ends the command's stdin.
func (s *stream) CloseWrite() error {
	err := s.conn.Write(s.life, websocket.MessageBinary, []byte{closeChannel, stdinChannel})
	if err != nil {
		return s.cut(err)
	}
	return nil
}

// Close implements io.Closer. It does not wait for the command, which sees the end of its stdin.
func (s *stream) Close() error {
	s.end()
	_ = s.conn.CloseNow() // fails only if the connection has ended
	return nil
}
