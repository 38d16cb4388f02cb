// Package linger keeps a serve alive between two connections of its manager.
//
// A [Lease] takes the place of the leash: serve ends when no manager was attached for a while, or when its manager says
// so. Managers attach by the service Attachment of remote/api/stepmuxv1, which the Lease implements. The Lease also
// keeps the notices of serve, which has no standard error of its own, for the next manager.
//
// Serve owns the Lease and closes it. Package connector has the manager's end.
package linger
