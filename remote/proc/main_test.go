package proc

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Main()
	if os.Getenv(serverVar) != "" {
		os.Exit(serverMain())
	}
	goleak.VerifyTestMain(m)
}
