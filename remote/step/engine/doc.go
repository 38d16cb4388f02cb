// Package engine runs one compiled job: its steps one after the other, each command in a process of its own.
// docs/language.md describes the language.
//
// A [Runner] runs one job once. Its [Config] has the definition and the variables, its [Place] the directories and the
// streams. It reports its progress by [Events]. A definition runs in a frame, which holds the inputs, the environment
// and the finished steps that its expressions can read. A reference to another step is loaded just before that step
// runs. Mistakes that are visible earlier fail the job before its first step. A list of steps stops at the first
// failure; then only steps run that ask for it.
//
// The engine builds the whole environment of a step. Of the runner's own environment it passes on only a few variables
// of the operating system. A script reaches the shell as a file: so its length has no limit, and it also runs where the
// file system forbids to execute files. A step writes its outputs to files. The engine treats these as hostile input.
//
// A step ends with its own process. Background processes live until the job ends: when [Runner.Run] has returned, no
// process of the job and no file of the engine is left.
package engine
