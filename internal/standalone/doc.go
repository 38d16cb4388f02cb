// Package standalone is the step runner without a manager. It runs one job on this machine, for a person at a terminal
// or for the script of a CI job, or serves jobs over TCP to programs on this machine.
//
// A [Source] is the text of a job: a file of steps, JSON, the variable STEPS, or a .gitlab-ci.yml with the name of a
// job. [Read] turns it into a [Job]. [Run] runs a Job in the same job store that serve uses (package job), shows its
// output as it comes, and returns a [Report]. Before Run returns, it removes all processes and directories of the job.
// [Serve] serves gRPC with a token until its context ends. [Validate] reports mistakes in files. Package gitlabci reads
// .gitlab-ci.yml, package replay repeats a job by its trace.
//
// Values from a command line never become part of a text that is parsed.
package standalone
