#!/usr/bin/env bash
# nats.go 1.55.0: a Read of an object that Get returned does not end with the context of Get while it waits.
#
# Guess: the context bounds the reads: they return once it is canceled.
# Comes: a Read that waits for a piece looks at the context again after five seconds at the earliest, if the context
# has no deadline.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
go get github.com/nats-io/nats-server/v2@v2.15.3 github.com/nats-io/nats.go@v1.55.0 2>/dev/null
cat >main.go <<'END'
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// network makes connections whose reads pause while it is locked.
type network struct {
	sync.RWMutex
	server *server.Server
}

func (n *network) Dial(string, string) (net.Conn, error) {
	conn, err := n.server.InProcessConn()
	return paused{conn, n}, err
}

type paused struct {
	net.Conn
	network *network
}

func (p paused) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	p.network.RLock()
	defer p.network.RUnlock()
	return n, err
}

func main() {
	s, err := server.NewServer(&server.Options{
		JetStream: true, StoreDir: "store", DontListen: true, NoLog: true, NoSigs: true,
	})
	check(err)
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(time.Minute) {
		panic("the server does not start")
	}
	network := &network{server: s}
	nc, err := nats.Connect("nats://server:4222", nats.SetCustomDialer(network))
	check(err)
	js, err := jetstream.New(nc)
	check(err)
	fmt.Println("nats-server", server.VERSION, "nats.go", nats.Version)

	store, err := js.CreateObjectStore(context.Background(), jetstream.ObjectStoreConfig{Bucket: "files"})
	check(err)
	_, err = store.PutBytes(context.Background(), "file", bytes.Repeat([]byte("text"), 8<<20))
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	object, err := store.Get(ctx, "file")
	check(err)
	_, err = io.ReadFull(object, make([]byte, 1000))
	check(err)

	network.Lock()
	var canceled time.Time
	time.AfterFunc(time.Second, func() { canceled = time.Now(); cancel() })
	_, err = io.Copy(io.Discard, object)
	fmt.Println("the error is the context's:", errors.Is(err, context.Canceled))
	fmt.Println("later than 2s after the cancel:", time.Since(canceled) > 2*time.Second)
	network.Unlock()
}
END
go mod tidy 2>/dev/null
timeout 120 go run . | tee output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
the error is the context's: true
later than 2s after the cancel: true
END
