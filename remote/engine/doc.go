// Package engine runs one compiled job: its steps one after the other, each as a process of its own.
//
// A [Runner] runs a job once. It stops at the first step that fails, but for the steps that are there
// for that case. Steps are given an environment that is made up in full ([Environ]): what the runner's
// own environment holds reaches no step, save a few variables of the operating system. A script
// is handed to the shell as a file, so that its length has no limit, and so that it runs where the
// file system forbids to execute files.
//
// A step ends with its own process. What it left in the background lives on until the job ends, and
// not longer: when [Runner.Run] has returned no process of the job is left, nor any file of the
// engine's.
package engine
