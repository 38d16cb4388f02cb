#!/usr/bin/env bash
# nats.go 1.55.0: Update of a key with a time to live makes it a key that stays, and no option can give it a new time.
# After the time, a key that "is not found" cannot be written with revision 0, which stands for "not there".
#
# Guess: an update keeps the key's time or begins it again; revision 0 works for each key that Get does not find.
# Comes: the time belongs to a message, and Update writes a new one without. The server leaves a marker in place of a
# key whose time has ended; Update with 0 meets its revision. Create looks for it, and works.
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

func start() (*server.Server, jetstream.JetStream) {
	s, err := server.NewServer(&server.Options{
		JetStream: true, StoreDir: "store", DontListen: true, NoLog: true, NoSigs: true, SyncAlways: true,
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
	return s, js
}

func main() {
	ctx := context.Background()
	s, js := start()
	defer s.Shutdown()
	fmt.Println("nats-server", server.VERSION, "nats.go", nats.Version)
	keys, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "keys", LimitMarkerTTL: time.Hour})
	check(err)
	watch, err := keys.WatchAll(ctx)
	check(err)
	<-watch.Updates() // nothing is there

	kept, err := keys.Create(ctx, "updated", []byte("1"), jetstream.KeyTTL(time.Second))
	check(err)
	<-watch.Updates()
	_, err = keys.Update(ctx, "updated", []byte("2"), kept)
	check(err)
	<-watch.Updates()

	_, err = keys.Create(ctx, "left", []byte("1"), jetstream.KeyTTL(2*time.Second))
	check(err)
	<-watch.Updates()
	gone := <-watch.Updates() // the next change is its end, and not that of the other key, whose time was shorter
	fmt.Println("the key that ended:", gone.Key(), gone.Operation())
	_, err = keys.Get(ctx, "updated")
	fmt.Println("the updated key:", err)
	_, err = keys.Get(ctx, "left")
	fmt.Println("the left key:", err)
	_, err = keys.Update(ctx, "left", []byte("2"), 0)
	fmt.Println("Update with revision 0 fails:", errors.Is(err, jetstream.ErrKeyRevisionMismatch))
	_, err = keys.Create(ctx, "left", []byte("2"))
	fmt.Println("Create:", err)
}
END
go mod tidy 2>/dev/null
go run . | tee output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
the key that ended: left KeyValuePurgeOp
the updated key: <nil>
the left key: nats: key not found
Update with revision 0 fails: true
Create: <nil>
END
