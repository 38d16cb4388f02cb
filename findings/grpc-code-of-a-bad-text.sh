#!/usr/bin/env bash
# grpc-go 1.85.0: a call with a text that is not UTF-8 fails with the code Internal, before anything is sent.
#
# Guess: InvalidArgument, as the caller's argument is wrong. Internal stands for a broken server or transport.
# Comes: Internal. Who repeats or reports failures by code takes a bad text for a fault of the other end.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
go get google.golang.org/grpc@v1.85.0 2>/dev/null
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	asked := 0
	server := grpc.NewServer(grpc.UnaryInterceptor(func(
		ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
	) (any, error) {
		asked++
		return handler(ctx, req)
	}))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { check(server.Serve(listener)) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	fmt.Println("grpc-go", grpc.Version)
	for _, name := range []string{"", "caf\u00e9", "caf\xe9"} {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(
			context.Background(), &grpc_health_v1.HealthCheckRequest{Service: name})
		fmt.Printf("%+q: %v, requests at the server: %d\n", name, status.Code(err), asked)
	}
}
END
go mod tidy 2>/dev/null
go run . | tee output
diff -u - output <<'END'
grpc-go 1.85.0
"": OK, requests at the server: 1
"caf\u00e9": NotFound, requests at the server: 2
"caf\xe9": Internal, requests at the server: 2
END
