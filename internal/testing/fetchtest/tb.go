package fetchtest

import "context"

// TB is the part of testing.TB that this package uses. The example has its own.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Errorf(format string, args ...any)
	FailNow()
}
