// Package doctor examines instances: can builds run there, and what would make them run better.
//
// [Examine] logs in, measures, starts a step runner as a build would, and returns a [Report] of findings:
// what was found, what to change, and what that gains. It leaves nothing on the VM.
package doctor
