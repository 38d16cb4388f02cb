package actionservices_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(packagesTemp) // it is empty if no test has installed packages
		os.Exit(code)
	}))
}
