// Package job keeps the jobs of a step runner: each is run once, can be followed from its start at any
// time, and is forgotten some time after its end.
//
// A [Store] takes jobs ([Store.Create]) and runs them all at once, each in a goroutine of its own with
// a directory of its own:
//
//	<dir>/jobs/<sha256 of the job's id>-<n>/{stdout,stderr,merged}   until the job is forgotten
//	                                       /{script,step-<n>/,vars/,work/}   until it has ended
//
// What a job writes, and what is said of it, is masked (package mask) before it is stored or seen.
//
// A job's name never reaches a path. When a job's end can be seen it is all over: its processes are
// gone, its logs complete, its temporary files removed. A disk that is full, or any other failure of
// the machine, fails the job it hits and no other.
//
// A [Follower] reads what a job writes and how its steps go, from any point. Any number may, and
// none holds up the job or another.
package job
