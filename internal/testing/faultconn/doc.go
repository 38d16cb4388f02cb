// Package faultconn puts faults into a connection: it makes it late, slow, frozen or cut. [New] wraps a real net.Conn
// in a [Conn]; [Listen] starts a [Proxy] in front of a server. Each owns its goroutines, and Close ends them.
//
// Latency is that of a long cable, not of a slow sender: bytes leave at once and arrive Delay later, and any number can
// be in flight. So the throughput of a protocol over distance can be measured. Inside a testing/synctest bubble it
// works on fake time, if the wrapped connection does.
package faultconn
