// Package carry carries out attempts of the jobs of a pipeline, without knowing its graph.
//
// An [Executor] carries out an [Attempt]: of a [Prepared] job, with the files of the project and the artifacts of other
// jobs, an [Archive] each. [Local] does so on this machine; others bring the archives to another one. The [Outcome] has
// the archive and the values that later jobs get. Equal archives are one file of a [Shelf]. Package whole runs the
// graph, and owns the Shelf.
package carry
