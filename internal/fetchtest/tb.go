package fetchtest

import "context"

// TB is what this package needs of a test. An example that serves what tests do stands in for one.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Errorf(format string, args ...any)
	FailNow()
}
