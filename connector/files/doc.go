// Package files sends the files of a project to a build, and collects the build's artifacts.
//
// A [Project] is an archive that is unpacked into the build's work directory ([VM.Place]). [Artifacts] are patterns of
// files that are collected at the build's end, as a [Collection]. A [VM] remembers which archives its machine has, so
// that an archive is sent once, however many builds need it at the same time.
//
// The package owns no goroutine and no connection. Package connector, which calls it, closes the Collection. The
// service at the other end is in remote/project.
package files
