package bench

import (
	"os"
	"testing"

	"github.com/stepmux/stepmux/internal/runnertest"
)

func TestMain(m *testing.M) {
	code := runnertest.M{M: m}.Run()
	programs.remove()
	os.Exit(code)
}
