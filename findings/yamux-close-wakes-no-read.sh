#!/usr/bin/env bash
# yamux 0.1.2: Close of a stream does not wake a Read of it that waits.
#
# Guess: Read returns an error, as for a net.Conn, whose documentation says that Close unblocks any Read ("Any blocked
# Read or Write operations will be unblocked"). A yamux.Stream is a net.Conn.
# Comes: Close ends only the direction of writing. A Read that waits, and one that begins later, wait for the peer.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
go get github.com/hashicorp/yamux@v0.1.2 2>/dev/null
cat >main.go <<'END'
package main

import (
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/yamux"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// read reports whether a Read of conn that waits, and a later one, return after Close.
func read(label string, conn net.Conn) {
	waiting, later := make(chan struct{}), make(chan struct{})
	go func() { _, _ = conn.Read(make([]byte, 1)); close(waiting) }()
	select {
	case <-waiting:
		panic("nothing was sent")
	case <-time.After(200 * time.Millisecond): // now it waits
	}
	check(conn.Close())
	go func() { _, _ = conn.Read(make([]byte, 1)); close(later) }()
	for name, returned := range map[string]chan struct{}{"a Read that waited": waiting, "a later Read": later} {
		select {
		case <-returned:
			defer fmt.Println(label+":", name, "returns")
		case <-time.After(5 * time.Second):
			defer fmt.Println(label+":", name, "waits on")
		}
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	pair := func() (net.Conn, net.Conn) {
		a, err := net.Dial("tcp", listener.Addr().String())
		check(err)
		b, err := listener.Accept()
		check(err)
		return a, b
	}
	one, _ := pair()
	read("net.TCPConn", one)

	a, b := pair()
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	client, err := yamux.Client(a, config)
	check(err)
	server, err := yamux.Server(b, config)
	check(err)
	stream, err := client.Open()
	check(err)
	_, err = server.Accept()
	check(err)
	read("yamux.Stream", stream)
}
END
go mod tidy 2>/dev/null
echo "yamux $(go list -m -f '{{.Version}}' github.com/hashicorp/yamux)"
go run . | sort | tee output
diff -u - output <<'END'
net.TCPConn: a Read that waited returns
net.TCPConn: a later Read returns
yamux.Stream: a Read that waited waits on
yamux.Stream: a later Read waits on
END
