// Package customexecutor is the driver of GitLab Runner's custom executor: the calls config, prepare, run and cleanup,
// each a process of its own that asks a stepmux manager for a slot, runs a script there, and gives the slot back.
//
// [Main] is such a process. It follows the contract of executors/custom of GitLab Runner 19.4. It imports nothing of
// the manager but its API, because a runner starts it four to eight times for each job. docs/gitlab.md has the
// config.toml.
package customexecutor
