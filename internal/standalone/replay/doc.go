// Package replay repeats the job of a trace: with the same steps, variables and environment, the same components and
// the same programs. docs/trace.md describes it for users.
//
// [Prepare] checks everything that can be checked before the job runs: the text compiles to the recorded definition,
// each fetched component is available and unchanged, steps of the project and programs have their digests, and each
// masked value is given. Otherwise it refuses the replay. The caller closes the [Plan]. [Plan.Run] runs its job and
// compares the new trace with the old one. Package standalone runs jobs, package inspect compares traces.
package replay
