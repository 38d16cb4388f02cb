// Package jobdoor has what the doors to servers of jobs have in common. A [Door] keeps the jobs that it has taken,
// reports them to their end, goes on with those of a door before, bounds them, and tells how it stands. What a server is
// asked, and how, is up to a [Server]. The [Host] is the manager.
package jobdoor
