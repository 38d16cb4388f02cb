#!/usr/bin/env bash
# golang.org/x/crypto/ssh 0.59.0: a connection that the network resets reads as the end of the output.
#
# Guess: Read of a session's output returns the network's error, as Read of a net.Conn does. io.EOF stays for the end
# that the command made.
# Comes: Read and Write return io.EOF itself, and so does NewSession. Wait has the error of a command that ended without
# a status, which a server may send of a command that did end. Only Wait of the connection tells the cause.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
go get golang.org/x/crypto@v0.59.0 2>/dev/null
cat >main.go <<'END'
package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/crypto/ssh"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// serve accepts one session and its command, and resets the connection.
func serve(l net.Listener) {
	_, key, err := ed25519.GenerateKey(nil)
	check(err)
	signer, err := ssh.NewSignerFromKey(key)
	check(err)
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	conn, err := l.Accept()
	check(err)
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	check(err)
	go ssh.DiscardRequests(requests)
	_, requests, err = (<-channels).Accept()
	check(err)
	check((<-requests).Reply(true, nil))
	check(conn.(*net.TCPConn).SetLinger(0)) // so that Close resets the connection
	check(conn.Close())
}

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go serve(l)
	client, err := ssh.Dial("tcp", l.Addr().String(),
		&ssh.ClientConfig{User: "test", HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	check(err)
	session, err := client.NewSession()
	check(err)
	in, err := session.StdinPipe()
	check(err)
	out, err := session.StdoutPipe()
	check(err)
	_ = session.Start("make") // the reset may overtake the answer
	_, err = out.Read(make([]byte, 8))
	fmt.Println("Read returns io.EOF itself:", err == io.EOF)
	_, err = in.Write([]byte("text"))
	fmt.Println("Write returns io.EOF itself:", err == io.EOF)
	_, err = client.NewSession()
	fmt.Println("NewSession returns io.EOF itself:", err == io.EOF)
	fmt.Println("Wait of the connection tells of a reset:", errors.Is(client.Wait(), syscall.ECONNRESET))
}
END
go mod tidy 2>/dev/null
echo "golang.org/x/crypto $(go list -m -f '{{.Version}}' golang.org/x/crypto)"
go run . | tee output
diff -u - output <<'END'
Read returns io.EOF itself: true
Write returns io.EOF itself: true
NewSession returns io.EOF itself: true
Wait of the connection tells of a reset: true
END
