// Package fetchtest has what steps are fetched from, for tests: git repositories, a server of them as it stands on the
// internet (git's own http-backend), and archives. Only tests use it.
package fetchtest
