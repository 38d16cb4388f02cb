#!/usr/bin/env bash
# nats-server 2.15.3, nats.go 1.55.0: a watch of a key can begin without a value that was acknowledged.
#
# Guess: a Get and a Watch of a bucket agree: a bucket whose stream does not allow direct reads is read on its leader, and
# what Put has acknowledged is seen by each later call.
# Comes: that holds for Get. A Watch is a consumer without replicas, and any server of the stream may have it, also one
# that is behind the leader. It then says that all present values were told, and tells the value as a change later.
# The script watches keys right after their Put, until that is seen once.
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
	"net"
	"net/url"
	"strconv"
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var routes []*url.URL
	var held []net.Listener // so that the ports differ
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(err)
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
		held = append(held, l)
	}
	for _, l := range held {
		check(l.Close())
	}
	var all []*server.Server
	for i, route := range routes {
		port, err := strconv.Atoi(route.Port())
		check(err)
		s, err := server.NewServer(&server.Options{
			ServerName: "s" + strconv.Itoa(i), Host: "127.0.0.1", Port: -1, JetStream: true, NoLog: true, NoSigs: true,
			StoreDir: "store" + strconv.Itoa(i), Routes: routes,
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port},
		})
		check(err)
		all = append(all, s)
	}
	for _, s := range all {
		s.Start()
		defer s.Shutdown()
	}
	nc, err := nats.Connect(all[0].ClientURL(), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	check(err)
	js, err := jetstream.New(nc)
	check(err)
	stream := jetstream.StreamConfig{ // as CreateKeyValue makes it, without AllowDirect
		Name: "KV_b", Subjects: []string{"$KV.b.>"}, MaxMsgsPerSubject: 1, AllowRollup: true, DenyDelete: true,
		Discard: jetstream.DiscardNew, Replicas: 3,
	}
	for {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := js.CreateStream(once, stream)
		cancel()
		if err == nil {
			break
		}
		check(ctx.Err())
	}
	bucket, err := js.KeyValue(ctx, "b")
	check(err)
	fmt.Println("nats-server", server.VERSION, "nats.go", nats.Version)
	missing := false
	for i := 0; i < 5000 && !missing; i++ {
		key := "k" + strconv.Itoa(i)
		_, err := bucket.Put(ctx, key, []byte("value"))
		check(err)
		watch, err := bucket.Watch(ctx, key)
		check(err)
		if missing = <-watch.Updates() == nil; missing {
			entry, err := bucket.Get(ctx, key)
			check(err)
			later := <-watch.Updates()
			fmt.Printf("the watch has nothing, Get has %q, and the watch has %q later\n", entry.Value(), later.Value())
		}
		check(watch.Stop())
	}
}
END
go mod tidy 2>/dev/null
go run . | tee output
diff -u - output <<'END'
nats-server 2.15.3 nats.go 1.55.0
the watch has nothing, Get has "value", and the watch has "value" later
END
