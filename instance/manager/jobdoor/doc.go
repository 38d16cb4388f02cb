// Package jobdoor is the common part of the doors to servers of jobs. A [Door] keeps the jobs that it has taken,
// reports them to their end, goes on with those of a door before, bounds them, and tells how it stands. What a server
// is asked, and how, is up to a [Server]. The [Host] is the manager.
package jobdoor
