// Package project has the files of a build on its VM. A [Project] serves the service Files: a manager places the files
// of its project before the job starts, and collects artifacts after the job has ended.
//
// Archives of projects are kept by content in a directory of the user's, for all builds there. The program beside the
// step runner packs and unpacks, so that the step runner links no compression. Serve owns the Project and closes it.
// Package contents has the store of archives.
package project
