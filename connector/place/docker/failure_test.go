package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// duringBuild starts a build that would take a minute, does harm to it and returns the container and the build's error
// as an executor tells it.
func duringBuild(t *testing.T, d *dockertest.Daemon, harm func(id string)) (*docker.Container, error) {
	t.Helper()
	c := start(t, config(t, d))
	b := connect(t, c)
	out := writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("started")) {
			harm(c.At())
		}
		return len(p), nil
	})
	_, err := b.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Script: "echo started; sleep 60"}}, out)
	require.Error(t, err)
	require.True(t, mux.IsLost(err), "%v", err)
	err = c.Explain(t.Context(), err)
	_ = b.Close(t.Context()) // the step runner's end was not seen; the container's end tells
	if c.Removed() {
		require.Empty(t, b.Left(), "a warning about files in a container that is gone")
	}
	return c, err
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestABuildWhoseContainerIsKilledOrRemovedFailsByName(t *testing.T) {
	d := dockertest.Start(t)
	emptyAtTheEnd(t, d)
	for name, harm := range map[string]func(id string) error{
		"killed": func(id string) error {
			_, err := d.Client.ContainerKill(context.Background(), id, client.ContainerKillOptions{Signal: "KILL"})
			return err
		},
		"removed": func(id string) error {
			_, err := d.Client.ContainerRemove(context.Background(), id, client.ContainerRemoveOptions{Force: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := duringBuild(t, d, func(id string) { require.NoError(t, harm(id)) })
			require.ErrorContains(t, err, "the container was killed")
			require.NoError(t, c.Close(t.Context()))
		})
	}
}

// The container of a dead daemon lives on until the daemon is back, which then ends it.
//
//stepmux:reliability promises | A build whose dockerd is killed fails, and nothing of it is left once dockerd is back
func TestABuildWhoseDaemonDiesFailsAndLeavesNothingOnceItIsBack(t *testing.T) {
	d := dockertest.Start(t)
	c, err := duringBuild(t, d, func(string) { d.Kill() })
	require.ErrorContains(t, err, "the connection to the Docker daemon was lost")
	require.NoError(t, d.Launch())
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, d.Containers(t))
}

// A daemon starts its containerd again. The container lives on meanwhile, and so does the build, unless the daemon
// loses its streams.
func TestABuildWhoseContainerdDiesEndsRightAndLeavesNothing(t *testing.T) {
	d := dockertest.Start(t)
	c := start(t, config(t, d))
	b := connect(t, c)
	result, err := b.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Script: "echo started; sleep 1; exit 5"}},
		writerFunc(func(p []byte) (int, error) {
			if bytes.Contains(p, []byte("started")) {
				d.KillContainerd(t)
			}
			return len(p), nil
		}))
	if err != nil {
		require.True(t, mux.IsLost(err), "%v", err)
	} else {
		require.Equal(t, 5, result.ExitCode, "%+v", result)
	}
	_ = b.Close(t.Context()) // the end of the container tells
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, d.Containers(t))
}

// A daemon that was asked for a hundred containers at once started half of them too late.
func TestContainersTakeTurnsAtTheirStart(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	free := docker.TakeAllTurns(t, cfg.Daemon)
	var log bytes.Buffer
	cfg.Log, cfg.ReadyTimeout = &log, time.Minute // of its turn
	over := errors.New("the test is over")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, over)
	defer cancel()
	_, err := docker.Start(ctx, cfg)
	require.ErrorIs(t, err, over)
	require.Contains(t, log.String(), "image busybox:1 is ", "the image needs no turn")
	free()
	require.NoError(t, start(t, cfg).Close(t.Context()))
	docker.TakeAllTurns(t, cfg.Daemon)() // all were given back
	require.Empty(t, d.Containers(t))
}

func TestADaemonWhoseDiskIsFullIsNamed(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	require.NoError(t, start(t, cfg).Close(t.Context()))
	empty := d.FillDisk(t)
	_, err := docker.Start(t.Context(), cfg)
	empty()
	require.ErrorContains(t, err, `create container of image "busybox:1": `)
	require.ErrorContains(t, err, "no space left on device")
	// Symptom: the VM had room at all times, so that it got all builds, and failed them.
	require.ErrorIs(t, err, place.ErrUnusable)
	require.Empty(t, d.Containers(t))
	require.NoError(t, start(t, cfg).Close(t.Context()))
}

// A step that needs more memory than the container has is killed, not the container.
func TestAStepThatNeedsTooMuchMemoryFails(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	var log bytes.Buffer
	cfg.Spec.Memory, cfg.Log = 64<<20, &log
	c := start(t, cfg)
	_, result := run(t, c, "head -c 200000000 /dev/zero | tail -c 190000000 >/dev/null")
	require.Equal(t, 137, result.ExitCode, "%+v", result)
	c.Note(t.Context(), result.ExitCode)
	require.Contains(t, log.String(), "a process was killed: the container ran out of memory (its limit is 64MiB)\n")
}

// recordConns returns a function that closes all connections to the daemon, as the kernel does for a manager that was
// killed.
func recordConns(cfg *docker.Config) (hangUp func()) {
	dial := cfg.Dial
	var mu sync.Mutex
	var conns []net.Conn
	cfg.Dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			conns = append(conns, conn)
		}
		return conn, err
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
}

func TestAManagerThatHangsUpLeavesNoContainer(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	hangUp := recordConns(&cfg)
	c := start(t, cfg)
	waiting := d.Client.ContainerWait(t.Context(), c.At(),
		client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	hangUp()
	select {
	case <-waiting.Result:
	case err := <-waiting.Error:
		require.NoError(t, err)
	}
	require.Empty(t, d.Containers(t))
	require.NoError(t, c.Close(t.Context()))
}

// A job that ignores SIGTERM kept its container for the five seconds that a step runner gives its jobs. It has one, in
// which it can clean up.
func TestAJobThatIgnoresSIGTERMDoesNotOutliveItsManagerForLong(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	out := t.TempDir()
	cfg.Spec.Volumes = []string{out + ":/out"}
	hangUp := recordConns(&cfg)
	c := start(t, cfg)
	waiting := d.Client.ContainerWait(t.Context(), c.At(),
		client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	b := connect(t, c)
	_, err := b.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{
			Script: `trap "sleep 0.1; touch /out/cleaned" TERM; echo started; while :; do sleep 0.2; echo >>/out/turns; done`,
		}},
		writerFunc(func(p []byte) (int, error) {
			hangUp()
			return len(p), nil
		}),
	)
	require.True(t, mux.IsLost(err), "%v", err)
	select {
	case <-waiting.Result:
	case err := <-waiting.Error:
		require.NoError(t, err)
	}
	turns, err := os.ReadFile(filepath.Join(out, "turns"))
	require.NoError(t, err)
	require.Less(t, len(turns), 15, "five of its turns take a second")
	require.FileExists(t, filepath.Join(out, "cleaned"))
	_ = b.Close(t.Context()) // the step runner's end was not seen; the container's end tells
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, d.Containers(t))
}

// A manager that died between the creation of a container and its start leaves it. The next build removes it, at once
// if that manager was a process of this machine.
func TestTheNextBuildRemovesContainersThatWereNotStarted(t *testing.T) {
	d := dockertest.Start(t)
	create := func(labels map[string]string) string {
		made, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Config: &container.Config{
				Image: dockertest.Image, Cmd: []string{"true"}, Labels: labels, Volumes: map[string]struct{}{"/v": {}},
			},
		})
		require.NoError(t, err)
		return made.ID
	}
	for name, test := range map[string]struct {
		limit time.Duration
		dead  string
	}{
		"of a machine that is not known": {-1, ""},
		"of this machine":                {time.Hour, docker.AnEarlierProcess()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(docker.SetStartLimit(test.limit))
			create(map[string]string{"dev.stepmux.build": "old", "dev.stepmux.manager": test.dead})
			kept := []string{create(nil)}
			if test.dead != "" {
				kept = append(kept, create(map[string]string{
					"dev.stepmux.build": "new", "dev.stepmux.group": "new", "dev.stepmux.manager": docker.ThisProcess(),
				}))
			}
			require.NoError(t, start(t, config(t, d)).Close(t.Context())) // it waits for the reaper
			var left []string
			for _, one := range d.List(t) {
				left = append(left, one.ID)
			}
			d.RemoveAll(t)
			require.ElementsMatch(t, kept, left)
			require.Empty(t, d.Containers(t), "the volume of the old container")
		})
	}
}

// Symptom: the end of a short build waited for 20 s while a manager put files into a container that seemed to be left.
func TestAnUploadOfAnotherManagerDoesNotDelayTheEndOfABuild(t *testing.T) {
	d := dockertest.Start(t)
	require.NoError(t, start(t, config(t, d)).Close(t.Context())) // the volume is full then
	made, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: &container.Config{
		Image: dockertest.Image, Cmd: []string{"true"}, Labels: map[string]string{"dev.stepmux.build": "old"},
	}})
	require.NoError(t, err)
	r, w := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		_, err := d.Client.CopyToContainer(t.Context(), made.ID,
			client.CopyToContainerOptions{DestinationPath: "/", Content: r})
		copied <- err
	}()
	archive, text := tar.NewWriter(w), make([]byte, 8<<20)
	require.NoError(t, archive.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: int64(len(text))}))
	_, err = archive.Write(text[1:]) // more than buffers take: the daemon reads it
	require.NoError(t, err)
	t.Cleanup(docker.SetStartLimit(-1))
	cfg, log := config(t, d), &sshtest.Log{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	require.NoError(t, start(t, cfg).Close(t.Context()))
	_, err = archive.Write(text[:1])
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	require.NoError(t, w.Close())
	require.NoError(t, <-copied)
	d.RemoveAll(t)
	require.Contains(t, log.String(), "the removal took longer than 2s", "the removal was given up")
}

func TestAStartThatIsCancelledLeavesNothing(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	require.NoError(t, start(t, cfg).Close(t.Context())) // the daemon is known then
	for n := int64(1); ; n++ {
		ctx, cancel := context.WithCancel(t.Context())
		var dials atomic.Int64
		cfg.Dial = func(dialing context.Context) (net.Conn, error) {
			conn, err := d.Dial(dialing)
			if err != nil {
				return nil, err
			}
			if dials.Add(1) == n {
				cancel()
			}
			return conn, nil
		}
		c, err := docker.Start(ctx, cfg)
		cancel()
		if err == nil {
			require.NoError(t, c.Close(t.Context()))
			require.Greater(t, n, int64(1), "a start makes several connections")
			break
		}
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, d.Containers(t))
	}
}

// Symptom: a daemon that hung while a container was about to start held the build for ever, past its timeout and a
// cancel.
func TestADaemonThatDoesNotTakeTheQuestionForTheEndIsGivenUp(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	require.NoError(t, start(t, cfg).Close(t.Context())) // the daemon has the program then
	cfg.ReadyTimeout = 3 * time.Second
	var cuts atomic.Int64
	cfg.Dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := d.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return hangsAt{faultconn.New(conn, faultconn.Config{}), "/wait?condition=removed", &cuts}, nil
	}
	_, err := docker.Start(t.Context(), cfg)
	require.ErrorContains(t, err, "the container was not ready within 3s")
	require.Zero(t, cuts.Load(), "it was given up by its own bound, and not for its cut connection")
	require.Empty(t, d.Containers(t))
}

// hangsAt is a connection to a daemon that takes no request with this text. After 30 s it is cut.
type hangsAt struct {
	*faultconn.Conn
	text string
	cuts *atomic.Int64
}

func (c hangsAt) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.text)) {
		c.Stall()
		time.AfterFunc(30*time.Second, func() {
			c.cuts.Add(1)
			c.Cut()
		})
	}
	return c.Conn.Write(p)
}

func TestImagesThatCannotRunAreRefusedByName(t *testing.T) {
	d := dockertest.Start(t)
	foreign, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "s390x"})
	require.NoError(t, err)
	ref, err := name.NewTag("mainframe:1")
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, tarball.Write(ref, foreign, &text))
	loaded, err := d.Client.ImageLoad(t.Context(), &text)
	require.NoError(t, err)
	_, err = new(bytes.Buffer).ReadFrom(loaded)
	require.NoError(t, err)
	require.NoError(t, loaded.Close())
	cfg := config(t, d)
	refused := func(want string) {
		t.Helper()
		_, err := docker.Start(t.Context(), cfg)
		require.ErrorContains(t, err, want)
		require.Empty(t, d.Containers(t))
	}
	cfg.Spec.Image = "mainframe:1"
	refused(`image "mainframe:1" is for linux/s390x, and not for linux/`)
	cfg.Spec.Image, cfg.Spec.Pull = "missing:1", place.PullNever
	refused(`the Docker daemon does not have image "missing:1", and --pull never forbids to pull it`)
	cfg.Spec.Image, cfg.Spec.Network = dockertest.Image, "no-such-network"
	refused("no-such-network")
	cfg.Spec.Network, cfg.Programs = "none", nil
	refused(`there is no stepmux for it; name one: --bootstrap-binary linux/`)
	cfg.Programs = []*program.Binary{dynamic(t)}
	refused("needs shared libraries, which the image may not have; use one of make build")
}

// Symptom: the error asked whether the daemon supports the version of the API. Its answer to a HEAD has no text.
func TestAnImageWithAFileWhereTheStepRunnerGoesFailsByName(t *testing.T) {
	d := dockertest.Start(t)
	var text bytes.Buffer
	archive := tar.NewWriter(&text)
	require.NoError(t, archive.WriteHeader(&tar.Header{Name: ".stepmux", Mode: 0o644}))
	require.NoError(t, archive.Close())
	source := client.ImageImportSource{Source: &text, SourceName: "-"}
	loaded, err := d.Client.ImageImport(t.Context(), source, "occupied:1", client.ImageImportOptions{})
	require.NoError(t, err)
	_, err = new(bytes.Buffer).ReadFrom(loaded)
	require.NoError(t, err)
	require.NoError(t, loaded.Close())
	cfg := config(t, d)
	cfg.Spec.Image = "occupied:1"
	_, err = docker.Start(t.Context(), cfg)
	require.ErrorContains(t, err, "/.stepmux")
	require.ErrorContains(t, err, "not a directory")
	require.Empty(t, d.Containers(t))
}

// An entrypoint that is kept may do anything. What it prints is not taken for a step runner's.
func TestAnEntrypointThatDoesNotBecomeTheStepRunnerFailsByName(t *testing.T) {
	d := dockertest.Start(t)
	emptyAtTheEnd(t, d)
	for name, test := range map[string]struct{ script, want string }{
		"ends":          {"exit 0", "the container ended with exit status 0: "},
		"fails":         {"echo no key >&2; exit 3", "the container ended with exit status 3: "},
		"is not found":  {"exec /no/such", "the container ended with exit status 127: "},
		"never becomes": {"sleep 600", "the relay on the VM did not start: the container was not ready within 10s ("},
		"prints the ready marker": {
			"echo step-runner is listening on socket /tmp/s | tee /dev/stderr; sleep 600",
			"the container was not ready within 10s; it said: step-runner is listening on socket /tmp/s (",
		},
		"floods stdout": {"exec yes hello", `no relay's hello in the first 65536 bytes; it printed "hello\nhello\n`},
		"floods stderr": {"exec yes hello >&2", "the container was not ready within 10s; it said: hello | hello | hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, d)
			cfg.Spec.Entrypoint, cfg.ReadyTimeout = []string{"/bin/sh", "-c", test.script, "sh"}, 10*time.Second
			_, err := docker.Start(t.Context(), cfg)
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, `its entrypoint must become the command that it gets, as by exec "$@"`)
			require.Less(t, len(err.Error()), 2000)
		})
	}
}

// dynamic returns a program that says it is a stepmux and needs shared libraries, as a plain `go build` makes where cgo
// works. It does nothing: the packages of stepmux would all be compiled for this.
func dynamic(t *testing.T) *program.Binary {
	t.Helper()
	dir, err := filepath.Abs("../../../cmd/stepmux-vm")
	require.NoError(t, err)
	in := t.TempDir()
	source, overlay, file := filepath.Join(in, "main.go"), filepath.Join(in, "overlay"), filepath.Join(in, "stepmux")
	require.NoError(t, os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, "main.go"): source}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-s -w -linkmode=external", "-overlay", overlay,
		"-o", file, dir)
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	bin, err := program.LoadBinary(file)
	require.NoError(t, err)
	return bin
}

func TestDaemonsThatAreNoneOrTooOld(t *testing.T) {
	answer := func(handler http.HandlerFunc) func(context.Context) (net.Conn, error) {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		return func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
		}
	}
	for name, test := range map[string]struct {
		dial func(context.Context) (net.Conn, error)
		want string
	}{
		"nobody": {
			func(context.Context) (net.Conn, error) { return nil, errors.New("no such socket") },
			"connect to the Docker daemon: no such socket (is it running, and may this user open its socket?",
		},
		"too old": {answer(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.24")
			if !strings.HasSuffix(r.URL.Path, "/_ping") {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = w.Write([]byte(`{"message":"client version 1.40 is too new. Maximum supported API version is 1.24"}`))
			}
		}), `Maximum supported API version is 1.24"} (stepmux speaks the API from 1.40 to 1.`},
		"no daemon": {answer(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat("<html>\n", 1000)))
		}), "ask the Docker daemon for its version: "},
		"of Windows": {answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			_, _ = w.Write([]byte(`{"Os":"windows","Arch":"amd64","ApiVersion":"1.41"}`))
		}), `runs containers of "windows"`},
		"podman": {answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			_, _ = w.Write([]byte(`{"Os":"linux","Arch":"amd64","ApiVersion":"1.41","Components":[{"Name":"Podman Engine"}]}`))
		}), "podman does not let a client attach to a container before its start"},
		"silent": {answer(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}), "ask the Docker daemon for its version: the Docker daemon did not answer within 3s"},
		"full of errors": {answer(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			if strings.HasSuffix(r.URL.Path, "/_ping") {
				return
			}
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte(`{"message":"` + strings.Repeat("no space\\n\\u001b[31m", 1000) + `"}`))
		}), "no space"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := docker.Start(t.Context(), docker.Config{
				Config: place.Config{BuildID: "b1", ReadyTimeout: 3 * time.Second},
				Dial:   test.dial, Daemon: &docker.Daemon{}, Spec: docker.Spec{Spec: place.Spec{Image: "a"}},
			})
			require.ErrorContains(t, err, test.want)
			require.Less(t, len(err.Error()), 2000)
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "\x1b")
		})
	}
}
