//go:build !linux

package mux

import "net"

// setQuickAck does nothing: TCP_QUICKACK is Linux only.
func setQuickAck(net.Conn) {}
