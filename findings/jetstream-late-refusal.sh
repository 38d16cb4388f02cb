#!/usr/bin/env bash
# JetStream 2.15.3: a late refusal (Nak, Term) of a delivery that was replaced counts against the new delivery.
#
# Guess: an answer names its delivery, with the number of the attempt in its subject, so the server ignores one that
# comes after the message was delivered again.
# Comes: only the message counts. A late Nak has it delivered a third time while the second worker has it, and a late
# Term takes it out of the queue. The second worker's Ack succeeds after both, so it learns nothing.
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
	for _, answer := range []string{"Nak", "Term"} {
		stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
			Name: answer, Subjects: []string{answer}, Retention: jetstream.WorkQueuePolicy,
		})
		check(err)
		// The first delivery is given up after 300 ms, the second one after an hour.
		queue, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 10,
			BackOff: []time.Duration{300 * time.Millisecond, time.Hour, time.Hour},
		})
		check(err)
		_, err = js.Publish(ctx, answer, []byte("job"))
		check(err)
		first, err := queue.Next(jetstream.FetchMaxWait(time.Minute))
		check(err)
		second, err := queue.Next(jetstream.FetchMaxWait(time.Minute))
		check(err)

		if answer == "Nak" {
			check(first.Nak())
			third, err := queue.Next(jetstream.FetchMaxWait(time.Minute))
			check(err)
			at, err := third.Metadata()
			check(err)
			fmt.Println("late Nak: delivery", at.NumDelivered)
		} else {
			check(first.TermWithReason("late"))
			info, err := stream.Info(ctx)
			for end := time.Now().Add(30 * time.Second); err == nil && info.State.Msgs > 0 && time.Now().Before(end); {
				info, err = stream.Info(ctx) // a Term has no answer
			}
			check(err)
			fmt.Println("late Term: messages in the queue:", info.State.Msgs)
		}
		fmt.Println("Ack of delivery 2:", second.DoubleAck(ctx))
	}
}
END
go mod tidy 2>/dev/null
go run . | tee output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
late Nak: delivery 3
Ack of delivery 2: <nil>
late Term: messages in the queue: 0
Ack of delivery 2: <nil>
END
