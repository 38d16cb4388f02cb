// Command iocopy joins standard input and output to the unix socket of its argument in the obvious way.
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func main() {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Args[1], Net: "unix"})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if _, err := io.Copy(conn, os.Stdin); err != nil {
			log.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			log.Fatal(err)
		}
	}()
	if _, err := io.Copy(os.Stdout, conn); err != nil {
		log.Fatal(err)
	}
}
