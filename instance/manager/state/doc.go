// Package state keeps the state of a manager: the queue of its builds, their records and logs, its leases and drains,
// and the actions of operators. They are streams and buckets of NATS JetStream.
//
// [Open] opens a [Store], which has all of it. Its home is a server in this process, or a cluster of NATS servers,
// whose state several managers share: home.go has the differences. The rules that keep a build from being lost or run
// twice are in store.go.
//
// A [Queue] hands a [Request] out in a [Delivery]. A [Record] is the state of a build; it is changed by
// compare-and-set. A [Log] writes the log of a build. The only goroutines of the store are those of the server and its
// client. The caller calls Settle every SettlePause, Stop of each Log, and Close.
package state
