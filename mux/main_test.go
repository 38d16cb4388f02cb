package mux_test

import (
	"os"
	"testing"

	"github.com/stepmux/stepmux/internal/runnertest"
)

func TestMain(m *testing.M) {
	code := runnertest.M{M: m}.Run()
	_ = os.RemoveAll(relayTempDir) // empty if no test used it
	os.Exit(code)
}
