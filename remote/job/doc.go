// Package job keeps the jobs of a step runner. Each runs once, can be followed from its start while its output is kept,
// and is removed some time after its end.
//
// A [Store] takes jobs ([Store.Create]) and runs all of them at once, each in a goroutine and a directory of its own:
//
//	<dir>/jobs/<sha256 of the job's id>-<n>/{stdout,stderr,merged}   until the job is removed
//	                                       /{script,step-<n>/,vars/,work/}   until it has ended
//
// A [Follower] reads a job's output and the results of its steps, from any offset. A job may have any number of
// followers. They delay neither the job nor each other.
//
// The store owns the jobs' processes, logs and directories. Shutdown ends the jobs and Close removes everything. Output
// and messages are masked (package mask) before they are stored. A job's name never becomes part of a path. When
// callers see that a job has ended, its processes are gone, its logs are complete and its temporary files are removed.
// A full disk, or another failure of the machine, fails only the job that it hits.
//
// Package service serves a store over gRPC; package joblog has the logs.
package job
