package docker

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/place"
)

// Symptom: an image with a file in place of the step runner's directory, or a connection that broke, failed all builds
// that waited for the upload of the step runner.
func TestWorkThatFailsForOneBuildIsDoneAgainForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, release := &Daemon{}, make(chan struct{})
		errs := make([]error, 3)
		var builds sync.WaitGroup
		done := 0
		for i := range errs {
			builds.Go(func() {
				errs[i] = d.share(t.Context(), &d.programs, "key", func(context.Context) (struct{}, time.Duration, error) {
					if i == 0 {
						<-release
						return untilForgotten(errors.New("no"))
					}
					done++
					return untilForgotten(nil)
				})
			})
			synctest.Wait()
		}
		close(release)
		builds.Wait()
		require.EqualError(t, errs[0], "no")
		require.NoError(t, errors.Join(errs[1:]...))
		require.Equal(t, 1, done)
	})
}

// Symptom: a manager's memory grew with each image that a build named.
func TestADaemonRemembersNoImagesThatWerePulled(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	dial := func(context.Context) (net.Conn, error) { return nil, errors.New("no daemon") }
	a, err := newAPI(dial, "", place.DefaultReadyTimeout)
	require.NoError(t, err)
	defer func() { _ = a.Close() }()
	c := &Container{api: a, cfg: Config{Config: place.Config{Log: io.Discard}, Daemon: &Daemon{}}}
	for _, image := range []string{"build:1", "build:2"} {
		require.ErrorContains(t, c.pull(t.Context(), image), "no daemon")
	}
	require.Empty(t, c.cfg.Daemon.pulls)
	require.Empty(t, c.cfg.Daemon.logins)
}
