package docker

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Symptom: a manager's memory grew with each image that a build named.
func TestADaemonRemembersNoImagesThatWerePulled(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	dial := func(context.Context) (net.Conn, error) { return nil, errors.New("no daemon") }
	a, err := newAPI(dial, "", defaultReadyTimeout)
	require.NoError(t, err)
	defer func() { _ = a.Close() }()
	c := &Container{api: a, cfg: Config{Daemon: &Daemon{}, Log: io.Discard}}
	for _, image := range []string{"build:1", "build:2"} {
		require.ErrorContains(t, c.pull(t.Context(), image), "no daemon")
	}
	require.Empty(t, c.cfg.Daemon.pulls)
}
