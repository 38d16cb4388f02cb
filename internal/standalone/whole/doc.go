// Package whole runs whole pipelines. It knows no language: another package reads the text of a pipeline into a
// [Pipeline], such as gitlabpipeline.
//
// [Run] carries out the graph of a pipeline. An [Executor] carries out each [Attempt] of a job: the files of the
// project and the artifacts of the jobs that it needs come as an [Archive] each, and the [Outcome] has one of its own
// artifacts. Without another Executor each job runs in a new directory on this machine. Child pipelines run beside it.
// Run owns all directories, archives and goroutines: they are gone when it returns. The [Report] says how each job
// ended, and why others did not run.
package whole
