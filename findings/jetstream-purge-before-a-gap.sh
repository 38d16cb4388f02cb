#!/usr/bin/env bash
# nats-server 2.15.3: a purge up to a sequence whose rest was deleted before, and the purge after it.
#
# Guess: a purge of a stream up to sequence N leaves each message from N on, whatever was deleted there before.
# Comes: if all messages from N on were deleted one by one, the block of messages keeps the one that has just gone as its
# first. The next purge counts that again, and so one message too many: the stream is empty, and a message from the second
# purge's own N on cannot be read until the server starts anew.
# With the subject in the purge, both purges are right.
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

func start() (*server.Server, jetstream.JetStream) {
	s, err := server.NewServer(&server.Options{
		JetStream: true, StoreDir: "store", DontListen: true, NoLog: true, NoSigs: true,
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

func try(name string, by ...jetstream.StreamPurgeOpt) {
	ctx := context.Background()
	s, js := start()
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name}})
	check(err)
	publish := func(n int) {
		for range n {
			_, err := js.Publish(ctx, name, []byte("message"))
			check(err)
		}
	}
	show := func(when string) {
		info, err := stream.Info(ctx)
		check(err)
		_, err = stream.GetMsg(ctx, 7)
		fmt.Printf("%s, %s: %d messages; message 7: %v\n", name, when, info.State.Msgs, err)
	}
	publish(4)
	for seq := uint64(2); seq <= 4; seq++ {
		check(stream.DeleteMsg(ctx, seq))
	}
	check(stream.Purge(ctx, append(by, jetstream.WithPurgeSequence(2))...))
	publish(3)
	check(stream.Purge(ctx, append(by, jetstream.WithPurgeSequence(7))...))
	show("purged to 2, then to 7")
	s.Shutdown()
	s.WaitForShutdown()
	s, js = start()
	defer s.Shutdown()
	stream, err = js.Stream(ctx, name)
	check(err)
	show("started again")
}

func main() {
	fmt.Println("nats-server", server.VERSION, "nats.go", nats.Version)
	try("plain")
	try("by-subject", jetstream.WithPurgeSubject("by-subject"))
}
END
go mod tidy 2>/dev/null
go run . | tee output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
plain, purged to 2, then to 7: 0 messages; message 7: nats: API error: code=404 err_code=10037 description=message not found
plain, started again: 1 messages; message 7: <nil>
by-subject, purged to 2, then to 7: 1 messages; message 7: <nil>
by-subject, started again: 1 messages; message 7: <nil>
END
