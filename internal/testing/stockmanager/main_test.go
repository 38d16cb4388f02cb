package stockmanager_test

import (
	"testing"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

func TestMain(m *testing.M) {
	remotetest.PlayRole(play)
	runnertest.Main(m)
}
