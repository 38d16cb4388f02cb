// Package socketdir keeps the private directories of builds on a VM, <tmp>/gitlab-runner-steps/<build id>, and the
// sockets in them.
//
//   - [Open] makes the directory of one build; the serve that made it owns it and calls Remove.
//   - [OpenGiven] takes a private directory that its caller has made anywhere, as GitLab Runner's manager does.
//   - [Listen] accepts connections on the build's socket from our own user and root only.
//   - [Connect] and [ConnectBuild] connect to such a socket, and refuse one on which another user listens.
//   - [Sweep] removes the directories of serves that were killed.
//
// A living serve holds a lock on its directory, so a directory that is not locked is stale. base.go has the rules by
// which processes share the base. Files and directories of other users are never removed or entered; the error is a
// [FoundError].
package socketdir
