//go:build !linux

package mux

import "net"

// vector would read and write two buffers by one system call. It is Linux only.
type vector struct{}

func vectors(net.Conn) (read, write *vector) { return nil, nil }

func (*vector) do(_, _ []byte) (int, error) { panic("BUG: there is none") }
func (*vector) writeAll(_, _ []byte) error  { panic("BUG: there is none") }
