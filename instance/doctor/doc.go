// Package doctor examines instances: can builds run there, and which changes would make them run better?
//
// [Examine] logs in, measures, starts a step runner as a build would, and returns a [Report] of findings. A finding
// holds the observation, the change to make, and its benefit. Examine closes its connections and leaves nothing on the
// VM, apart from login files that the isolation of the first build would make. The command is `stepmux doctor`; see
// docs/fleet.md.
package doctor
