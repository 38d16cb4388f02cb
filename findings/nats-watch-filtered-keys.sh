#!/usr/bin/env bash
# nats.go 1.55.0: KeyValue.WatchFiltered changes the keys in the caller's slice.
#
# Guess: the slice is read only: the caller can use it again, for instance to open the watch anew after a break.
# Comes: each key has the bucket's subject before it. A second watch with this slice is refused: its keys are invalid.
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
	bucket, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "jobs"})
	check(err)
	_, err = bucket.PutString(ctx, "one", "text")
	check(err)
	keys := []string{"one"}
	for range 2 {
		_, err := bucket.WatchFiltered(ctx, keys)
		fmt.Println("error:", err, "keys are now", keys)
	}
}
END
go mod tidy 2>/dev/null
timeout 120 go run . | tee output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
error: <nil> keys are now [$KV.jobs.one]
error: nats: invalid key: key cannot be empty and must be a valid NATS subject keys are now [$KV.jobs.one]
END
