#!/usr/bin/env bash
# client-go 0.36.3: an exec whose connection is cut, or ends without a status, succeeds.
#
# The server reports a command's end in a last message or stream, the status. Without it the command's end is unknown.
# Guess: both executors return an error if the connection ends without a status.
# Comes: no status counts as success. By SPDY even a cut connection does. By WebSocket a cut connection is an error, but
# a connection that was closed with the code 1000 is a success.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
go get k8s.io/client-go@v0.36.3 k8s.io/streaming@v0.36.3 github.com/coder/websocket@v1.8.15 2>/dev/null
cat >main.go <<'END'
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"

	"github.com/coder/websocket"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// byWebSocket serves the beginning of an exec: output, and no status.
func byWebSocket(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"v5.channel.k8s.io"}})
	check(err)
	check(conn.Write(r.Context(), websocket.MessageBinary, []byte("\x01output")))
	if r.URL.Query().Has("cut") {
		_ = conn.CloseNow()
	} else {
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
}

// bySPDY does the same by SPDY.
func bySPDY(w http.ResponseWriter, r *http.Request) {
	_, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"})
	check(err)
	opened := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		opened <- s
		return nil
	})
	defer conn.Close()
	streams := []httpstream.Stream{<-opened, <-opened}
	for _, s := range streams {
		if s.Headers().Get("streamType") == "stdout" {
			_, err := io.WriteString(s, "output")
			check(err)
		}
	}
	if !r.URL.Query().Has("cut") {
		for _, s := range streams {
			check(s.Close())
		}
		<-conn.CloseChan()
	}
}

func main() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			byWebSocket(w, r)
		} else {
			bySPDY(w, r)
		}
	}))
	for _, end := range []string{"closed", "cut"} {
		at, err := url.Parse(server.URL + "/exec?" + end)
		check(err)
		config := &rest.Config{Host: server.URL}
		ws, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, at.String())
		check(err)
		old, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, at)
		check(err)
		for i, executor := range []remotecommand.Executor{ws, old} {
			var out bytes.Buffer
			err := executor.StreamWithContext(context.Background(), remotecommand.StreamOptions{Stdout: &out})
			fmt.Printf("%s, %s: %q, an error: %v\n", []string{"WebSocket", "SPDY"}[i], end, out.String(), err != nil)
		}
	}
}
END
go mod tidy 2>/dev/null
echo "client-go $(go list -m -f '{{.Version}}' k8s.io/client-go)"
go run . 2>log | tee output
diff -u - output <<'END'
WebSocket, closed: "output", an error: false
SPDY, closed: "output", an error: false
WebSocket, cut: "output", an error: true
SPDY, cut: "output", an error: false
END
