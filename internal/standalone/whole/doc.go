// Package whole runs whole pipelines on this machine. It knows no language: another package reads the text of a
// pipeline into a [Pipeline], such as gitlabpipeline.
//
// [Run] carries out the graph of a pipeline: each job runs in a new directory with the files of the project and the
// artifacts of the jobs that it needs. Its own artifacts are kept in archives, which other jobs unpack. Child pipelines
// run beside it. Run owns all directories and goroutines: they are gone when it returns. The [Report] says how each job
// ended, and why others did not run.
package whole
