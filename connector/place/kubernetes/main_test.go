package kubernetes_test

import (
	"testing"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

func TestMain(m *testing.M) { runnertest.Main(m) }
