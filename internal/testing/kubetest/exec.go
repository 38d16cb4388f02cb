package kubetest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// exec runs a command in a pod.
func (s *Server) exec(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	p := s.pods[name]
	known := p != nil && !p.deleted
	s.mu.Unlock()
	if !known {
		Refuse(w, http.StatusNotFound, fmt.Sprintf("pods %q not found", name))
		return
	}
	conn, streams, err := openStreams(w, r)
	if err != nil {
		return // the client was told
	}
	s.mu.Lock()
	s.execs[conn] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.execs, conn)
		s.mu.Unlock()
		_ = conn.Close() // fails only if it was cut
	}()
	var argv []string
	for _, word := range r.URL.Query()["command"] {
		argv = append(argv, inDir(p.dir, word))
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = streams[1], streams[2]
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = s.start(p, cmd)
	}
	if err != nil {
		_ = json.NewEncoder(streams[3]).Encode(Object{"status": "Failure", "reason": "InternalError", "message": err.Error()})
		return
	}
	s.wg.Go(func() {
		_, _ = io.Copy(stdin, streams[0]) // until the command or the connection ends
		_ = stdin.Close()                 // fails only if the command has ended
	})
	err = cmd.Wait()
	status := Object{"status": "Success"}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		cause := Object{"reason": "ExitCode", "message": fmt.Sprint(exit.ExitCode())}
		status = Object{"status": "Failure", "reason": "NonZeroExitCode", "details": Object{"causes": []any{cause}}}
	}
	if !s.Mute {
		_ = json.NewEncoder(streams[3]).Encode(status) // it may be cut
	}
}

// openStreams opens the streams of an exec: stdin, stdout, stderr and the status.
func openStreams(w http.ResponseWriter, r *http.Request) (io.Closer, []io.ReadWriteCloser, error) {
	if wsstream.IsWebSocketRequest(r) {
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
			"v5.channel.k8s.io": {Binary: true, Channels: []wsstream.ChannelType{
				wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.ReadChannel,
			}},
		})
		_, streams, err := conn.Open(w, r)
		return conn, streams, err
	}
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return nil, nil, err
	}
	opened := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(hijacked{w}, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		opened <- s
		return nil
	})
	if conn == nil {
		return nil, nil, errors.New("no upgrade")
	}
	streams := make([]io.ReadWriteCloser, 4)
	for range streams {
		select {
		case s := <-opened:
			streams[slices.Index([]string{"stdin", "stdout", "stderr", "error"}, s.Headers().Get("streamType"))] = s
		case <-conn.CloseChan():
			return nil, nil, errors.New("the client has gone")
		}
	}
	return conn, streams, nil
}

// hijacked is a response whose connection closes without an error: the SPDY library waits for a second to report one.
type hijacked struct{ http.ResponseWriter }

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(h.ResponseWriter).Hijack()
	return closing{conn}, buffered, err
}

type closing struct{ net.Conn }

func (c closing) Close() error {
	_ = c.Conn.Close() // fails only if the connection has ended
	return nil
}
