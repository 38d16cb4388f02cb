// Package local is the step runner by itself, without a manager: it runs one job on this machine, for whoever
// sits before it or for the script of a CI job, or serves jobs over TCP to programs on it.
//
// A [Source] says where a job comes from: a file of steps, JSON, the variable STEPS, a job of a .gitlab-ci.yml.
// [Read] reads it to a [Job], [Run] runs that in the same job store that serve has (package job), shows its
// output in the order it came about, and leaves a [Report]. Nothing else is left: no process, no directory.
// [Serve] serves gRPC with a token. [Validate] says what is wrong with files.
//
// Values given on a command line never become part of a text that is parsed.
package standalone
