#!/usr/bin/env bash
# nats-server 2.15.3: in a bucket with a history of more than one, a key does not end before the time that the marks of
# ended keys stay, whatever time it was given. With a history of one it does.
#
# Guess: a key with KeyTTL of a second is gone after some seconds.
# Comes: the server puts LimitMarkerTTL of the bucket in the place of the time of the message, and does not tell.
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
	"context"
	"fmt"
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
	nc, err := nats.Connect("", nats.InProcessServer(s))
	check(err)
	js, err := jetstream.New(nc)
	check(err)
	fmt.Println("nats-server", server.VERSION, "nats.go", nats.Version)
	ctx := context.Background()
	for _, history := range []uint8{1, 2} {
		bucket := fmt.Sprint("history", history)
		kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: bucket, History: history, LimitMarkerTTL: 10 * time.Minute,
		})
		check(err)
		revision, err := kv.Create(ctx, "key", nil, jetstream.KeyTTL(time.Second))
		check(err)
		stream, err := js.Stream(ctx, "KV_"+bucket)
		check(err)
		msg, err := stream.GetMsg(ctx, revision)
		check(err)
		time.Sleep(4 * time.Second)
		_, err = kv.Get(ctx, "key")
		fmt.Printf("history %d: time %s, after 4s: %v\n", history, msg.Header.Get(jetstream.MsgTTLHeader), err)
	}
}
END
go mod tidy 2>/dev/null
timeout 120 go run . | tee output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
history 1: time 1s, after 4s: nats: key not found
history 2: time 600, after 4s: <nil>
END
