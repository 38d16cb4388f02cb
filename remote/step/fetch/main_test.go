package fetch

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roleVar makes the test binary another program, which fetches until it is killed.
const roleVar = "STEPMUX_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) == "fetch" {
		os.Exit(fetchRole())
	}
	goleak.VerifyTestMain(m)
}
