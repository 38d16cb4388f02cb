// Package files brings the files of a project to a build, and takes its artifacts. A [Project] is an archive that the
// build gets in its work directory, [Artifacts] are patterns of files that come back. A [VM] remembers what is there
// already, so that an archive is sent to a VM once, however many builds need it at once.
package files
