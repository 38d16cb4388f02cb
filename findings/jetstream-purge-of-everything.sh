#!/usr/bin/env bash
# JetStream 2.15.3 with SyncAlways: a purge of all messages is answered before it is on disk.
#
# Guess: with SyncAlways each change is synced before its answer, as a message and the purge of a part are.
# Comes: a purge of everything renames the directory of the messages and puts a new one in its place. No directory is
# synced, neither before the answer nor with the next message that is stored. strace shows it.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
go get github.com/nats-io/nats-server/v2@v2.15.3 github.com/nats-io/nats.go@v1.55.0 2>/dev/null
command -v strace >/dev/null || { echo "skip: needs strace"; exit 77; }
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"syscall"
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
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "queue", Subjects: []string{"queue"}})
	check(err)
	step := func(name string, do func() error) {
		_ = syscall.Rmdir("/nowhere/" + name) // a mark for strace
		check(do())
	}
	publish := func() error { _, err := js.Publish(ctx, "queue", []byte("message")); return err }
	for range 3 {
		check(publish())
	}
	step("publish", publish)
	step("purge-a-part", func() error { return stream.Purge(ctx, jetstream.WithPurgeSequence(3)) })
	step("purge-all", func() error { return stream.Purge(ctx) })
	step("publish-again", publish)
	step("end", func() error { return nil })
}
END
go mod tidy 2>/dev/null
go build -o program .
strace -f -o calls -e trace=rename,renameat,renameat2,fsync,fdatasync,sync_file_range,openat,unlinkat,rmdir \
    ./program | tee output
# Between the marks: renames of directories, and syncs.
awk -v FS='"' '
    /\/nowhere\// { sub(".*/nowhere/", "", $2); step = $2; next }
    step == "" || step == "end" || / = -1 / { next }
    /rename/ && $4 ~ /msgs(__)?$/ { sub(".*/", "", $2); sub(".*/", "", $4); print step ": rename " $2 " to " $4 }
    /(fsync|fdatasync)\(/ { print step ": sync" }
' calls | uniq | tee -a output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
publish: sync
purge-a-part: sync
purge-all: sync
purge-all: rename msgs to __msgs__
purge-all: rename __new_msgs__ to msgs
publish-again: sync
END
