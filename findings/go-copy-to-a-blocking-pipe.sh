#!/usr/bin/env bash
# Go 1.26: io.Copy from a socket to a pipe in blocking mode takes a whole processor while the pipe's reader pauses.
#
# Guess: the copy sleeps in a write until the reader goes on, as a copy by read and write does.
# Comes: os.File.ReadFrom uses splice(2). For a file whose descriptor is in blocking mode, such as a standard output
# that was inherited, it calls splice again and again without a wait. In non-blocking mode it sleeps.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
[[ $(go version) == "go version go1.26."* ]] || { echo "skip: needs Go 1.26"; exit 77; }
cat >main.go <<'END'
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// used returns the processor time of this process.
func used() time.Duration {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// copied copies from a socket that has always more to a pipe that nobody reads, and returns the processor time.
func copied(flags int, hide bool) time.Duration {
	listener, err := net.Listen("unix", fmt.Sprintf("socket-%d-%v", flags, hide))
	check(err)
	from, err := net.Dial("unix", listener.Addr().String())
	check(err)
	defer from.Close()
	conn, err := listener.Accept()
	check(err)
	go func() { _, _ = io.Copy(from, zeros{}) }()
	var ends [2]int
	check(syscall.Pipe2(ends[:], flags))
	reader, writer := os.NewFile(uintptr(ends[0]), "reader"), os.NewFile(uintptr(ends[1]), "writer")
	done := make(chan struct{})
	go func() {
		defer close(done)
		if hide {
			_, _ = io.Copy(struct{ io.Writer }{writer}, struct{ io.Reader }{conn})
		} else {
			_, _ = io.Copy(writer, conn)
		}
	}()
	time.Sleep(time.Second) // the pipe is full
	before := used()
	time.Sleep(3 * time.Second)
	spent := used() - before
	conn.Close()
	reader.Close()
	<-done
	return spent
}

func main() {
	plain := max(copied(0, true), 3*time.Millisecond)
	fmt.Println("blocking: 20 times the processor time of read and write:", copied(0, false) > 20*plain)
	fmt.Println("non-blocking: 20 times that time:", copied(syscall.O_NONBLOCK, false) > 20*plain)
}
END
go version | cut -d' ' -f3
go run . | tee output
diff -u - output <<'END'
blocking: 20 times the processor time of read and write: true
non-blocking: 20 times that time: false
END
