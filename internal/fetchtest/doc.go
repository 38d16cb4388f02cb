// Package fetchtest has what steps are fetched from, for tests: git repositories, a server of them as it stands on the
// internet (git's own http-backend), archives, and a registry of images. Only tests use it, and the example that shows
// all sources.
package fetchtest
