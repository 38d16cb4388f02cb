package connector_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Symptom: the race detector reported Socket and Credentials.
func TestABuildCanBeLookedAtWhileItConnects(t *testing.T) {
	server := embedded(t)
	b := newBuild(t, server, "b1", runnertest.Command(t)[0], func(cfg *connector.Config) {
		cfg.Linger = time.Minute
		cfg.Reconnect = func(context.Context) (connector.Lease, error) { return &lease{conn: connect(t, server)}, nil }
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			_, _, _ = b.Credentials(), b.Socket(), b.Choice()
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	_, err := b.Connect(sshtest.Within(t))
	close(stop)
	<-stopped
	require.NoError(t, err)
	require.NotEmpty(t, b.Socket())
}
