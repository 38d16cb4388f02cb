// Package pool shares one connection per machine among many users at once.
//
// [Pool.Acquire] gives a [Lease] on the connection of a [Key]. Leases are shared and counted: any number may be out on
// one connection. The first Acquire of a key dials, all others join that dial, and it goes on when the caller that
// began it leaves. A connection leaves service when it dies, has been idle or in service for long enough, or is
// retired. It then takes no new leases, is closed with its last lease, and the next Acquire dials again. Only
// [Pool.Close] and [Pool.Sever] close a connection that has leases.
//
// For one key at most one connection is in service and at most one dial is under way at any time. A new connection
// stands beside an old one only while the old one has leases.
//
// The pool owns its connections and its goroutines; Close and Shutdown end both. It knows no protocol and no failure
// policy: an error of [Config].Dial goes to all callers that wait for it, and the next Acquire dials again at once. A
// Dial that retries, or waits for its turn, does so in [Standby].
package pool
