// Package engine runs one compiled job: its steps one after the other, each command as a process of its
// own. docs/language.md says what a job means.
//
// A [Runner] runs a job once. Definitions run in frames: a frame knows the inputs, the environment and the
// steps that are over, and its expressions are evaluated when their step's turn has come. A step that
// refers to another is loaded just before it runs, and what is known to be wrong with it before that fails
// the job before its first step. A list of steps stops at the first that fails, but for the steps that are
// there for that case.
//
// Steps are given an environment that is made up in full: what the runner's own environment holds reaches
// no step, save a few variables of the operating system. A script is handed to the shell as a file, so that
// its length has no limit, and so that it runs where the file system forbids to execute files. What a step
// gives it writes to files of its own, which are read with distrust: they may be anything by then.
//
// A step ends with its own process. What it left in the background lives on until the job ends, and
// not longer: when [Runner.Run] has returned no process of the job is left, nor any file of the
// engine's.
package engine
