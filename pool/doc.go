// Package pool shares one connection per machine among many users at once.
//
// [Pool.Acquire] gives a [Lease] on the connection of a [Key]. Leases are shared and counted: any
// number may be out on one connection. The first Acquire of a key dials, all others join that dial,
// and it goes on when the caller that began it leaves. A connection leaves service when it dies, has
// been idle or in service for long enough, or is retired; it then takes no new leases, is closed with
// its last lease, and the next Acquire dials anew. What is in flight is never ended by the pool,
// other than by [Pool.Close].
//
// For one key at most one connection is in service and at most one dial is under way at any time. A
// new connection stands beside an old one only while the old one has leases. Failed dials are
// repeated at growing intervals, and dials of all keys together are bounded in number and pace.
//
// The package is generic and knows no protocol.
package pool
