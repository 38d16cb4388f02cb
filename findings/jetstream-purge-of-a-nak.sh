#!/usr/bin/env bash
# JetStream 2.15.3: a purge of earlier messages makes a consumer forget that a later one was given back.
#
# Guess: a message that was refused with Nak is handed out again at once, and a purge up to a sequence changes nothing for
# the messages after it.
# Comes: the purge empties the consumer's list of messages to be handed out again, since it keeps only those that were
# never handed out. The refused message comes when its AckWait is over: here an hour.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
go get github.com/nats-io/nats-server/v2@v2.15.3 github.com/nats-io/nats.go@v1.55.0 2>/dev/null
cat >main.go <<'GO'
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
	for _, purge := range []bool{false, true} {
		stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
			Name: fmt.Sprint("queue-", purge), Subjects: []string{fmt.Sprint("queue.", purge)},
			Retention: jetstream.WorkQueuePolicy,
		})
		check(err)
		consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: "worker", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour,
		})
		check(err)
		for range 2 {
			_, err := js.Publish(ctx, fmt.Sprint("queue.", purge), nil)
			check(err)
		}
		_, err = consumer.Next() // the first, which is not acknowledged
		check(err)
		second, err := consumer.Next()
		check(err)
		check(second.Nak())
		check(nc.Flush())
		if purge {
			check(stream.Purge(ctx, jetstream.WithPurgeSequence(2))) // the first
		}
		again := "handed out again"
		if _, err := consumer.Next(jetstream.FetchMaxWait(3 * time.Second)); err != nil {
			again = "not handed out for 3 s"
		}
		fmt.Printf("purge of the message before: %v; the refused message: %s\n", purge, again)
	}
}
GO
go mod tidy 2>/dev/null
got=$(go run .)
echo "$got"
want='nats-server 2.15.3 nats.go 1.55.0
purge of the message before: false; the refused message: handed out again
purge of the message before: true; the refused message: not handed out for 3 s'
[ "$got" = "$want" ] || { echo "expected:"; echo "$want"; exit 1; }
