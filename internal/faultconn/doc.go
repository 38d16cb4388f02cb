// Package faultconn makes a connection bad in a controlled way: late, slow, frozen or cut. It wraps
// a real net.Conn; nothing about the bytes is faked.
//
// Latency is that of a long cable, not of a slow sender: what is written leaves at once and arrives
// Delay later, with any amount in flight, so a protocol's throughput over distance can be measured.
// It works on fake time inside a testing/synctest bubble if the wrapped connection does.
package faultconn
