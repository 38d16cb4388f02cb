// Package fetch gets steps that are not part of a project: from git repositories, zip archives and images of OCI
// registries. What was fetched is a [Component], a directory that nobody changes, in a cache that all processes of a
// user share.
//
// A [Store] keeps components by what they hold: the name of one is the digest of its files, so that it can be checked
// whether it still is what was fetched. One is written beside its place and renamed into it, whole. Before it is
// used its files are compared with the digest, or with what was known of them when they last were.
//
// Processes that know nothing of each other share the cache by locks of files (flock), which end with whoever holds
// them. What is being fetched is locked, so that it is fetched once however many jobs need it, and a slow server holds
// up only those who need something of it. What is in use is locked too, and all else can be removed when the cache has
// grown too large. A scratch directory that nobody has locked is of a process that is gone, and is removed.
//
// A branch or a tag is what its server says it is after Fetch was called; a commit or a digest is itself for ever and
// asks nobody, unless credentials were needed to fetch it. Then they are asked for each time: the server must still
// accept those that are presented. No credential is ever written to a file, or part of a command.
//
// All that comes from a server is data: no program, hook, filter or configuration of a repository is run or read, no
// submodule and no large file kept elsewhere is fetched, and an archive that would write outside of its
// directory, or more than it may, is refused as a whole. The package runs the git program, and works on Linux.
package fetch
