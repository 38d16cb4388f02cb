package socketdir

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

func TestMain(m *testing.M) {
	remotetest.PlayRole(remotetest.NoRole)
	goleak.VerifyTestMain(m)
}
