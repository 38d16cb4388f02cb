package docker_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// config returns the configuration of a build in a container of dockertest.Image.
func config(t testing.TB, d *dockertest.Daemon) docker.Config {
	t.Helper()
	end, err := runnertest.Program()
	require.NoError(t, err)
	bin, err := program.LoadBinary(end)
	require.NoError(t, err)
	return docker.Config{
		Config: place.Config{BuildID: "b1", Programs: []*program.Binary{bin}},
		Dial:   d.Dial, Daemon: &docker.Daemon{},
		Spec: docker.Spec{Spec: place.Spec{Image: dockertest.Image}, Network: "none"},
	}
}

// start starts a container, which the test's end closes.
func start(t testing.TB, cfg docker.Config) *docker.Container {
	t.Helper()
	c, err := docker.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) }) // a test closes it itself to see the error
	return c
}

// emptyAtTheEnd checks that the test, with its subtests that run at the same time, leaves nothing on the daemon.
func emptyAtTheEnd(t *testing.T, d *dockertest.Daemon) {
	t.Helper()
	t.Cleanup(func() {
		// Not by require: the testing package shows no message of a test that ends so after subtests at the same time.
		if left := d.Containers(t); len(left) > 0 {
			t.Errorf("left on the daemon: %v", left)
		}
	})
}

// build is a build in a container.
type build struct {
	*connector.Connector
	log bytes.Buffer // of the step runner
}

// connect starts a build in the container, which the test's end closes before the container.
func connect(t testing.TB, c *docker.Container) *build {
	t.Helper()
	b := &build{}
	cfg := connector.Config{BuildID: "b1", Log: &b.log}
	c.Configure(&cfg)
	var err error
	b.Connector, err = connector.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close(context.Background()) }) // fails in tests that remove the container
	_, err = b.Connect(t.Context())
	require.NoError(t, err)
	return b
}

// run runs a script as a build in the container, to its end, and returns its output.
func run(t testing.TB, c *docker.Container, script string) (string, connector.Result) {
	t.Helper()
	b := connect(t, c)
	var out bytes.Buffer
	result, err := b.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Script: script, PassEnv: []string{"all"}}},
		&out,
	)
	require.NoError(t, err, "%s", b.log.String())
	require.NoError(t, b.Close(t.Context()))
	require.Empty(t, b.Left())
	return out.String(), result
}

func TestAScriptRunsInTheContainerAndNothingIsLeft(t *testing.T) {
	d := dockertest.Start(t)
	var log bytes.Buffer
	cfg := config(t, d)
	cfg.Log = &log
	c := start(t, cfg)
	out, result := run(t, c, "echo $COLOUR; id -u; exit 3")
	require.Equal(t, connector.Failed, result.Status)
	require.Equal(t, 3, result.ExitCode)
	require.Equal(t, "of-the-image\n0\n", out)
	require.Regexp(t, `^image busybox:1 is sha256:[0-9a-f]{64}\n$`, log.String())
	require.NoError(t, c.Close(t.Context()))
	require.True(t, c.Removed())
	require.Empty(t, d.Containers(t))
}

func TestContainersOfAllKindsRunAScript(t *testing.T) {
	d := dockertest.Start(t)
	// limit prints the file of a limit, of whichever version of cgroups.
	limit := func(v1, v2 string) string {
		return "cat /sys/fs/cgroup/" + v1 + " 2>/dev/null || cat /sys/fs/cgroup/" + v2
	}
	for name, test := range map[string]struct {
		spec         docker.Spec
		script, want string
	}{
		"another user": {docker.Spec{Spec: place.Spec{User: "1000:1000"}}, `id -u; touch f && echo "$(ls)"`, "1000\nf\n"},
		"read-only root": {
			docker.Spec{Spec: place.Spec{ReadOnly: true}}, "touch /x 2>/dev/null || echo refused; touch f && ls", "refused\nf\n",
		},
		"both": {docker.Spec{Spec: place.Spec{ReadOnly: true, User: "1000"}}, "id -u; touch f && ls", "1000\nf\n"},
		"memory": {
			docker.Spec{Spec: place.Spec{Memory: 64 << 20}}, limit("memory/memory.limit_in_bytes", "memory.max"), "67108864\n",
		},
		"pids":     {docker.Spec{Spec: place.Spec{Pids: 200}}, limit("pids/pids.max", "pids.max"), "200\n"},
		"tmpfs":    {docker.Spec{Tmpfs: []string{"/fast:size=1m"}}, "df -k /fast | tail -1 | awk '{print $2}'", "1024\n"},
		"platform": {docker.Spec{Spec: place.Spec{Platform: "linux/" + runtime.GOARCH}}, "echo runs", "runs\n"},
		"another entrypoint": {
			docker.Spec{Spec: place.Spec{Entrypoint: []string{"/bin/busybox", "env", "BY=env"}}}, "echo $BY", "env\n",
		},
		"an entrypoint with a shell": {
			docker.Spec{Spec: place.Spec{Entrypoint: []string{"/bin/sh", "-c"}}}, "echo runs", "runs\n",
		},
		"hosts": {docker.Spec{Hosts: []string{"db:10.0.0.9"}}, "grep db /etc/hosts", "10.0.0.9\tdb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, d)
			cfg.Spec = test.spec
			cfg.Spec.Image, cfg.Spec.Network = dockertest.Image, "none"
			cfg.Spec.Labels = []string{"team=a"}
			out, result := run(t, start(t, cfg), test.script)
			require.Equal(t, test.want, out, "%+v", result)
		})
	}
}

// The image's own entrypoint may prepare the container. It becomes the step runner.
func TestAnEntrypointThatIsKeptRunsFirst(t *testing.T) {
	d := dockertest.Start(t)
	d.Load(t, "prepared:1", `ENTRYPOINT ["/bin/sh","-c","echo prepared >/tmp/by; exec \"$@\"","sh"]`)
	cfg := config(t, d)
	cfg.Spec.Image, cfg.Spec.KeepEntrypoint = "prepared:1", true
	out, _ := run(t, start(t, cfg), "cat /tmp/by")
	require.Equal(t, "prepared\n", out)
}

// Symptom: with containerd's image store, which may have an image for several platforms, the one for the daemon's own
// platform was looked at, and so the build was refused.
func TestTheImageOfThePlatformIsLookedAt(t *testing.T) {
	d := dockertest.Start(t)
	var mu sync.Mutex
	made := 0
	proxy := httptest.NewServer(&httputil.ReverseProxy{ // a later daemon, with another image for its own platform
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.Dial(ctx) },
		},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker"
			r.Out.URL.Path = strings.Replace(r.In.URL.Path, "/v1.49/", "/v1.41/", 1)
			if query := r.In.URL.Query(); query.Has("platform") && strings.HasSuffix(r.In.URL.Path, "/containers/create") {
				mu.Lock()
				defer mu.Unlock()
				made++
			}
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Api-Version", "1.49")
			if strings.Contains(r.Request.URL.Path, "/images/") && !r.Request.URL.Query().Has("platform") {
				body, err := io.ReadAll(r.Body)
				body = bytes.ReplaceAll(body, []byte(`"`+runtime.GOARCH+`"`), []byte(`"other"`))
				r.Header.Del("Content-Length")
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), -1
				return err
			}
			return nil
		},
	})
	t.Cleanup(proxy.Close)
	cfg := config(t, d)
	cfg.Dial = func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", proxy.Listener.Addr().String())
	}
	cfg.Spec.Platform, cfg.Spec.Pull, cfg.Spec.Network = "linux/"+runtime.GOARCH, place.PullNever, ""
	cfg.Spec.Services = []place.Service{{Image: dockertest.Image, Alias: "idle", Command: []string{"sleep", "600"}}}
	require.NoError(t, start(t, cfg).Close(t.Context()))
	require.Equal(t, 2, made, "the steps' container and the service are of the platform")
}

func TestAnImageForAnotherPlatformIsRefused(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	cfg.Spec.Platform, cfg.Spec.Pull = "linux/riscv64", place.PullNever
	_, err := docker.Start(t.Context(), cfg)
	require.ErrorContains(t, err, "and not for linux/riscv64: use an image for that")
	require.Empty(t, d.Containers(t))
}

func TestAnImageWithNothingInItRunsACommand(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	cfg.Spec.Image = dockertest.Bare
	b := connect(t, start(t, cfg))
	var out bytes.Buffer
	job := connector.Job{
		Job: &stepmuxv1.Job{Steps: []byte(`run: [{name: v, exec: {command: [/.stepmux/bin/stepmux, version]}}]`)},
	}
	result, err := b.Execute(t.Context(), job, &out)
	require.NoError(t, err)
	require.Equal(t, connector.Succeeded, result.Status, "%+v", result)
	require.Contains(t, out.String(), "Name: stepmux\n")
}

func TestTheMainProcessReapsOrphans(t *testing.T) {
	d := dockertest.Start(t)
	out, _ := run(t, start(t, config(t, d)), "(sleep 0.05 &); sleep 0.3; ps -o stat | grep -c Z; true")
	require.Equal(t, "0\n", out)
}

// Many builds on a daemon that has no stepmux yet put it there once, and do not wait for each other otherwise.
func TestManyContainersStartAtOnce(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		wg.Go(func() {
			cfg := cfg
			cfg.BuildID = fmt.Sprintf("many-%d", i)
			c, err := docker.Start(t.Context(), cfg)
			if err == nil {
				err = c.Close(t.Context())
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Empty(t, d.Containers(t))
}

// removeVolumes removes all volumes of a daemon.
func removeVolumes(t *testing.T, d *dockertest.Daemon) {
	t.Helper()
	found, err := d.Client.VolumeList(t.Context(), client.VolumeListOptions{})
	require.NoError(t, err)
	for _, v := range found.Items {
		_, err := d.Client.VolumeRemove(t.Context(), v.Name, client.VolumeRemoveOptions{})
		require.NoError(t, err)
	}
}

// `docker volume prune` removes the step runner's volume while no build runs.
func TestAVolumeThatWasRemovedIsFilledAgain(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	require.NoError(t, start(t, cfg).Close(t.Context()))
	removeVolumes(t, d)
	out, _ := run(t, start(t, cfg), "echo again")
	require.Equal(t, "again\n", out)
}

// Symptom: after one failure, as of a disk that was full, no build of the manager ran on the daemon any more.
func TestAnUploadThatFailedIsTriedAgain(t *testing.T) {
	d := dockertest.Start(t)
	removeVolumes(t, d)
	cfg := config(t, d)
	empty := d.FillDisk(t)
	_, err := docker.Start(t.Context(), cfg)
	empty()
	require.ErrorContains(t, err, "put stepmux on the Docker daemon")
	require.ErrorIs(t, err, place.ErrUnusable)
	require.NoError(t, start(t, cfg).Close(t.Context()))
}

// Symptom: over a link of 5 Mbit/s the program did not get onto a daemon within 30 s, so no build ran there.
func TestAProgramMayTakeLongerThanReadyTimeout(t *testing.T) {
	d := dockertest.Start(t)
	removeVolumes(t, d)
	cfg := config(t, d)
	cfg.ReadyTimeout = 4 * time.Second // 21 MB take 7 s
	cfg.Dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := d.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return faultconn.New(conn, faultconn.Config{Bandwidth: 3 << 20, Buffer: 256 << 10}), nil
	}
	start(t, cfg)
}

// Symptom: a canceled build waited for the end of the upload, over a slow link for minutes.
func TestACanceledStartEndsItsUpload(t *testing.T) {
	d := dockertest.Start(t)
	removeVolumes(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sent atomic.Int64
	cfg := config(t, d)
	cfg.Dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := d.Dial(ctx)
		if err != nil {
			return nil, err
		}
		slow := faultconn.New(conn, faultconn.Config{Bandwidth: 3 << 20, Buffer: 256 << 10})
		return counted{slow, func(n int) {
			if sent.Add(int64(n)) > 1<<20 {
				cancel()
			}
		}}, nil
	}
	_, err := docker.Start(ctx, cfg)
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, sent.Load(), int64(8<<20))
	require.Empty(t, d.Containers(t))
}

// counted is a connection that tells how many bytes were written.
type counted struct {
	net.Conn
	wrote func(n int)
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.wrote(n)
	return n, err
}

// An image may have a program where the step runner's volume is mounted. It does not get into the volume.
func TestTheImagesFilesDoNotGetIntoTheStepRunnersVolume(t *testing.T) {
	d := dockertest.Start(t)
	made, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{Image: dockertest.Image, Cmd: []string{
			"sh", "-c",
			"mkdir -p /.stepmux/bin; touch /.stepmux/bin/complete; echo evil >/.stepmux/bin/stepmux; chmod +x /.stepmux/bin/*",
		}},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	require.NoError(t, err)
	waiting := d.Client.ContainerWait(t.Context(), made.ID,
		client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	_, err = d.Client.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})
	require.NoError(t, err)
	<-waiting.Result
	_, err = d.Client.ContainerCommit(t.Context(), made.ID, client.ContainerCommitOptions{Reference: "evil:test"})
	require.NoError(t, err)
	_, err = d.Client.ContainerRemove(t.Context(), made.ID, client.ContainerRemoveOptions{Force: true})
	require.NoError(t, err)
	removeVolumes(t, d)
	cfg := config(t, d)
	cfg.Spec.Image = "evil:test"
	out, _ := run(t, start(t, cfg), "echo good")
	require.Equal(t, "good\n", out)
}

func TestSpecsThatNoBuildMayHave(t *testing.T) {
	for want, spec := range map[string]docker.Spec{
		`image name "a b"`:               {Spec: place.Spec{Image: "a b"}},
		`image name "x\nRUN y"`:          {Spec: place.Spec{Image: "x\nRUN y"}},
		`image name ""`:                  {},
		`pull policy "sometimes"`:        {Spec: place.Spec{Image: "a", Pull: "sometimes"}},
		"a limit of the container":       {Spec: place.Spec{Image: "a", Memory: -1}},
		`"u\nx" has a control character`: {Spec: place.Spec{Image: "a", User: "u\nx"}},
		"all files of the machine":       {Spec: place.Spec{Image: "a"}, Volumes: []string{"/:/host"}},
		"all files of the machine; name": {Spec: place.Spec{Image: "a"}, Volumes: []string{"/../.:/host"}},
		"want SOURCE:PATH":               {Spec: place.Spec{Image: "a"}, Volumes: []string{"/data"}},
		"root of the container":          {Spec: place.Spec{Image: "a"}, Volumes: []string{"/data:/"}},
		"is not absolute":                {Spec: place.Spec{Image: "a"}, Volumes: []string{"/data:x"}},
		"the step runner is there":       {Spec: place.Spec{Image: "a"}, Tmpfs: []string{"/x/../.stepmux/bin"}},
		`host "db" : want NAME:IP`:       {Spec: place.Spec{Image: "a"}, Hosts: []string{"db"}},
	} {
		err := spec.Check()
		require.Error(t, err, "%+v", spec)
		require.Contains(t, err.Error(), strings.ReplaceAll(want, `" :`, `":`))
		_, err = docker.Start(t.Context(), docker.Config{
			Config: place.Config{BuildID: "b1"},
			Dial:   nil, Daemon: &docker.Daemon{}, Spec: spec,
		})
		require.Error(t, err)
	}
}
