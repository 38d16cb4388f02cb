#!/usr/bin/env bash
# nats.go 1.55.0: Next of an ordered consumer does not end with its context when the server has no JetStream any more.
#
# Guess: Next returns when the context of NextContext ends, as that of any other consumer does.
# Comes: after two missed heartbeats an ordered consumer makes itself anew inside of Next. It tries for ever, with
# contexts of its own. Only Stop, called from another goroutine, ends the call.
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
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "log", Subjects: []string{"log"}})
	check(err)
	plain, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{})
	check(err)
	ordered, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	check(err)
	options := []jetstream.PullMessagesOpt{jetstream.PullExpiry(2 * time.Second), jetstream.PullHeartbeat(time.Second)}
	readers := map[string]jetstream.MessagesContext{}
	readers["plain"], err = plain.Messages(options...)
	check(err)
	readers["ordered"], err = ordered.Messages(options...)
	check(err)
	check(s.DisableJetStream()) // the connection stays, but no call of JetStream is answered
	for _, kind := range []string{"plain", "ordered"} {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			for ctx.Err() == nil {
				_, _ = readers[kind].Next(jetstream.NextContext(ctx))
			}
		}()
		<-ctx.Done()
		select {
		case <-returned:
			fmt.Println(kind, "returns with its context")
		case <-time.After(5 * time.Second):
			fmt.Println(kind, "waits on, 5s after its context")
			readers[kind].Stop()
			<-returned
			fmt.Println(kind, "returns after Stop")
		}
	}
}
END
go mod tidy 2>/dev/null
timeout 120 go run . | tee output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
plain returns with its context
ordered waits on, 5s after its context
ordered returns after Stop
END
