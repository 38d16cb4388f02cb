package stockmanager_test

import (
	"testing"

	"github.com/stepmux/stepmux/internal/remotetest"
	"github.com/stepmux/stepmux/internal/runnertest"
)

func TestMain(m *testing.M) {
	remotetest.PlayRole(play)
	runnertest.Main(m)
}
