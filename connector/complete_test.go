package connector_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// packedFetch is our stepmux-fetch as a manager carries it. Before each read open is called.
func packedFetch(t testing.TB, open func() error) *program.Binary {
	t.Helper()
	path, err := runnertest.PackedFetch()
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return program.PackedBinary(runtime.GOOS+"/"+runtime.GOARCH, func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(text)), open()
	})
}

func TestTheFirstBuildWaitsForTheProgramForTheNetworkOnlyIfItFetches(t *testing.T) {
	for _, route := range []connector.Route{connector.Auto, connector.Session} {
		t.Run(string(route), func(t *testing.T) {
			root := t.TempDir()
			h := fetchtest.ServeGit(t, root)
			fetchtest.NewRepository(t, filepath.Join(root, "c", "echo")).Commit("main",
				fetchtest.Texts(map[string]string{"steps/step.yml": "spec: {}\n---\nexec: {command: [echo, fetched]}\n"}))
			v := &bareVM{cache: fetchtest.CacheDir(t), tmp: sshtest.SocketDir(t)}
			v.Server = sshtest.InProcess(t, embeddedvm.Config{Env: []string{"XDG_CACHE_HOME=" + v.cache}})
			arrives := make(chan struct{})
			var opened atomic.Int32
			both := carried(t).WithBeside(packedFetch(t, func() error {
				opened.Add(1)
				<-arrives
				return nil
			}))
			given := func(c *connector.Config) { c.Bootstrap, c.Route = []*program.Binary{both}, route }
			b := v.build(t, "b1", given)
			_, err := b.Connect(sshtest.Within(t))
			require.NoError(t, err)
			run := func(b *build, job connector.Job) {
				t.Helper()
				log := &sshtest.Log{}
				result, err := b.Execute(sshtest.Within(t), job, log)
				require.NoError(t, err)
				require.Equal(t, connector.Succeeded, result.Status, "%s: %s", result.Message, log)
			}
			run(b, connector.Job{Job: &stepmuxv1.Job{Script: "true"}, ID: "j1"})
			fetch := filepath.Join(filepath.Dir(place(t, filepath.Join(v.cache, "stepmux"))), "stepmux-fetch")
			require.NoFileExists(t, fetch)

			go close(arrives)
			steps := connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run:\n- step: " + h.URL + "/c/echo@main\n")}, ID: "j2"}
			run(b, steps)
			require.FileExists(t, fetch)
			require.NoError(t, b.Close(sshtest.Within(t)))

			n := opened.Load()
			again := v.build(t, "b2", given) // by another connection
			_, err = again.Connect(sshtest.Within(t))
			require.NoError(t, err)
			run(again, steps)
			require.NoError(t, again.Close(sshtest.Within(t)))
			require.Equal(t, n, opened.Load(), "it was sent again")
			require.Equal(t, 1, h.Fetches())
		})
	}
}

func TestBuildsGoOnWithoutTheProgramForTheNetwork(t *testing.T) {
	v := newBareVM(t)
	logger, log := logs()
	broken := packedFetch(t, func() error { return errors.New("it cannot be read") })
	b := v.build(t, "b1", func(c *connector.Config) {
		c.Bootstrap, c.Logger = []*program.Binary{carried(t).WithBeside(broken)}, logger
	})
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
	log.Await(t, "jobs on the VM cannot fetch steps, nor bring artifacts and caches, for now")
	require.Contains(t, log.String(), "it cannot be read")
	result, err := b.Execute(sshtest.Within(t), connector.Job{Job: &stepmuxv1.Job{Script: "true"}}, &sshtest.Log{})
	require.NoError(t, err)
	require.Equal(t, connector.Succeeded, result.Status)
	require.NoError(t, b.Close(sshtest.Within(t)))
}
