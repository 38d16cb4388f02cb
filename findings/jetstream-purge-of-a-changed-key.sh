#!/usr/bin/env bash
# nats-server 2.15.3: a key was changed, then purged with a mark that ends by its time. When the mark has gone and the
# server is killed, the key has its first value again. A history of 2 and a rollup at each change keep it away.
#
# Guess: a key that has gone stays away.
# Comes: the server writes a note of what a rollup or a time removes, and none of what the limit of messages of a key
# removes. When it has no index of its files from its end, it removes what has a note first, and applies the limit to
# the rest: the oldest value is then the only one. The folder is copied while the server has nothing to do, which is
# what a kill leaves. Keys are changed by KeyValue.Put, and removed by KeyValue.Purge with PurgeTTL.
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
	"errors"
	"fmt"
	"os"
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

var ctx = context.Background()

func start(dir string) (jetstream.JetStream, func()) {
	s, err := server.NewServer(&server.Options{
		JetStream: true, StoreDir: dir, SyncAlways: true, DontListen: true, NoLog: true, NoSigs: true,
	})
	check(err)
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		panic("the server does not start")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	check(err)
	js, err := jetstream.New(nc)
	check(err)
	return js, s.Shutdown
}

// isThere reports whether the key of a bucket has a value.
func isThere(js jetstream.JetStream, bucket string) bool {
	kv, err := js.KeyValue(ctx, bucket)
	check(err)
	_, err = kv.Get(ctx, "key")
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		panic(err)
	}
	return err == nil
}

func main() {
	fmt.Println("nats-server", server.VERSION, "nats.go", nats.Version)
	js, stop := start("store")
	defer stop()
	for bucket, history := range map[string]uint8{"one": 1, "two": 2} {
		kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: bucket, History: history, LimitMarkerTTL: time.Second,
		})
		check(err)
		_, err = kv.Put(ctx, "other", nil) // else the whole file goes
		check(err)
		for _, value := range []string{"first", "second", "third"} {
			msg := nats.NewMsg("$KV." + bucket + ".key")
			msg.Data = []byte(value)
			if bucket == "two" {
				msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
			}
			_, err := js.PublishMsg(ctx, msg) // as Put does
			check(err)
		}
		check(kv.Purge(ctx, "key", jetstream.PurgeTTL(time.Second)))
		stream, err := js.Stream(ctx, "KV_"+bucket)
		check(err)
		for { // the mark goes
			info, err := stream.Info(ctx)
			check(err)
			if info.State.Msgs == 1 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		fmt.Println("before the kill it is there:", isThere(js, bucket))
	}
	check(os.CopyFS("killed", os.DirFS("store")))
	after, end := start("killed")
	defer end()
	fmt.Println("after it, with a history of 1:", isThere(after, "one"))
	fmt.Println("after it, with a history of 2 and rollups:", isThere(after, "two"))
}
END
go mod tidy 2>/dev/null
timeout 120 go run . | tee output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
before the kill it is there: false
before the kill it is there: false
after it, with a history of 1: true
after it, with a history of 2 and rollups: false
END
