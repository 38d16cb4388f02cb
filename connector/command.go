package connector

import "github.com/stepmux/stepmux/internal/wire"

// Every command line for a VM is built here, and nowhere else, from argument vectors that wire.Quote
// makes safe for the login shell. No job variable is ever part of one.

// serveLine starts the build's step runner.
func serveLine(runner []string, socket string) (string, error) {
	return runnerLine(runner, "steps", "serve", "--socket", socket)
}

// proxyLine bridges stdin and stdout to the build's socket.
func proxyLine(runner []string, socket string) (string, error) {
	return runnerLine(runner, "steps", "proxy", "--socket", socket)
}

// removeLine removes a build's directory that its serve could not remove itself.
func removeLine(dir string) (string, error) { return wire.Quote("rm", "-rf", "--", dir) }

func runnerLine(runner []string, args ...string) (string, error) {
	return wire.Quote(append(append([]string{}, runner...), args...)...)
}
