// Package runner holds GitLab Runner's own client against the fake server of the package gitlabtest: each call, and
// each answer that it knows. It also writes the conversation that the tests of the product hold again (go test
// -update).
//
// It is a module of its own, so that nothing of GitLab Runner enters the product's graph. The module proxy does not
// have three of its modules: labkit/v2, moa and step-runner. The folder testdata has modules in their place, with the
// few names that are needed to compile; the client uses only the name of a log field. make prove WHAT=gitlab runs the
// tests.
package runner
