// Package fetch gets the steps that are not in the project: from git repositories, zip archives and images of OCI
// registries.
//
// A [Store] fetches a step by its reference and returns a [Component], a read-only directory in a cache that all
// processes of a user share. The caller releases each Component and closes the Store. The engine is the main caller;
// start reading at store.go, obtain.go and verify.go.
//
// A component is named by the digest of its files. It is written to a scratch directory and renamed to its place, so it
// is complete or does not exist. Before each use its files are compared with the digest, or with a stamp of the last
// comparison.
//
// Processes coordinate by file locks, which end with their holders. A component that is being fetched is
// locked: so it is fetched once, however many jobs need it, and a slow server delays only the jobs that need its steps.
// A component in use is locked too. The cache may remove all others when it has grown too large. A scratch directory
// without a lock belongs to a dead process, and is removed.
//
// For a branch or a tag, each Fetch needs an answer of the server that is newer than its own beginning; calls at the
// same time share one. A commit or a digest never changes, so its server is not asked, unless the component is private:
// then the server must accept the caller's credentials each time. No credential is ever written to a file, or passed to
// another program: git fetches a private repository from a server of this package on the loopback address, which logs
// in for it.
//
// Data from servers is never executed: no program, hook, filter or configuration of a repository has any effect, and
// submodules and large files kept elsewhere (LFS) are not fetched. An archive that would write outside of its
// directory, or exceed a limit, is refused as a whole. The package runs the git program, and works on Linux.
package fetch
