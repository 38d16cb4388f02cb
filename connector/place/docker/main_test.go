package docker_test

import (
	"testing"

	"github.com/stepmux/stepmux/internal/testing/dockertest"
)

func TestMain(m *testing.M) { dockertest.Main(m) }
