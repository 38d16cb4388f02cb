// Package engine runs one compiled job: its steps one after the other, each command in a process of its own.
// docs/language.md describes the language.
//
// A [Runner] runs one job once. Its [Config] has the definition and the variables, its [Place] the directories and
// the streams. Events tell a caller how the job goes on. A definition runs in a frame: the inputs, the environment
// and the finished steps that its expressions can read. A reference to another step is loaded just before that step
// runs; mistakes that are visible earlier fail the job before its first step. A list of steps stops at the first
// failure, except for steps that ask to run then.
//
// The engine makes up the whole environment of a step: of the runner's own, a few variables of the operating system
// pass. A script reaches the shell as a file, so that its length has no limit and so that it runs where the file
// system forbids to execute files. A step writes its outputs to files, which the engine reads with distrust.
//
// A step ends with its own process. Background processes live until the job ends: when [Runner.Run] has returned, no
// process of the job and no file of the engine is left.
package engine
