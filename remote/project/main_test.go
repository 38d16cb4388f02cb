package project

import (
	"testing"

	"github.com/stepmux/stepmux/internal/runnertest"
)

func TestMain(m *testing.M) { runnertest.Main(m) }
