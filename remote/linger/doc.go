// Package linger keeps a serve alive between two connections of its manager.
//
// A [Lease] takes the place of the leash: serve ends when no manager was attached for a given time, or when its manager
// says so. Managers attach by the service Attachment of remote/api/stepmuxv1, which the Lease implements. The Lease
// also keeps the notices of serve for the next manager, because a lingering serve has no standard error of its own.
//
// Serve owns the Lease and closes it. Package connector has the manager's end.
package linger
