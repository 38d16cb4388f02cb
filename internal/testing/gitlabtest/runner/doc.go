// Package runner holds GitLab Runner's own client against the fake server of the package gitlabtest: each call, and each
// answer that it knows. It also writes the conversation that the tests of the product hold again (go test -update).
//
// It is a module of its own, so that nothing of GitLab Runner enters the product's graph. Three of its modules cannot be
// had by the module proxy: labkit/v2, moa and step-runner. The folder testdata has modules in their place with the few names
// that are needed to compile; the client calls none of them but the name of a log field. make prove WHAT=gitlab runs it.
package runner
