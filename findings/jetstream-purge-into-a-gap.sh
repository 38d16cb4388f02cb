#!/usr/bin/env bash
# nats-server 2.15.3: after a purge that leaves nothing, the next purge can remove one message more than it was told to.
#
# Guess: a purge up to a sequence removes the messages before it, whatever was removed earlier.
# Comes: if the earlier purge removed the last message, and the stream has assigned later sequences (those messages were
# removed one by one), that message is counted again by the next purge. So the message at the bound of that, which must
# stay, goes too, and no error says so. A purge of everything, without a sequence, has no such effect.
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
	ctx := context.Background()
	s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: "store", DontListen: true, NoLog: true, NoSigs: true})
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
	fmt.Println("nats-server", server.VERSION)
	for name, first := range map[string][]jetstream.StreamPurgeOpt{
		"by-sequence": {jetstream.WithPurgeSequence(3)}, "everything": nil,
	} {
		stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name}})
		check(err)
		publish := func(n int) {
			for range n {
				_, err := js.Publish(ctx, name, []byte("message"))
				check(err)
			}
		}
		publish(4)
		for _, seq := range []uint64{1, 3, 4} {
			check(stream.DeleteMsg(ctx, seq))
		}
		check(stream.Purge(ctx, first...)) // message 2 goes
		publish(2)                         // 5 and 6
		check(stream.Purge(ctx, jetstream.WithPurgeSequence(6)))
		info, err := stream.Info(ctx)
		check(err)
		_, err = stream.GetMsg(ctx, 6)
		fmt.Printf("first purge %s: %d messages, message 6 is there: %t\n", name, info.State.Msgs, err == nil)
	}
}
END
go mod tidy 2>/dev/null
go run . | sort | tee output
diff -u - output <<'END'
first purge by-sequence: 0 messages, message 6 is there: false
first purge everything: 1 messages, message 6 is there: true
nats-server 2.15.3
END
