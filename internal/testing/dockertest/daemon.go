// Package dockertest starts a Docker daemon of its own for tests, with images that need no registry. [Start] returns
// the daemon of the test binary; [Main] ends it.
package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

const (
	// Image is an image with busybox, a root user and /tmp.
	Image = "busybox:1"
	// Bare is an image without files.
	Bare = "bare:1"

	dockerd, busybox = "/usr/sbin/dockerd", "/usr/bin/busybox"
	// startTimeout bounds the start of the daemon, and its end.
	startTimeout = 30 * time.Second
)

// Daemon is a Docker daemon.
type Daemon struct {
	// Socket is the path of its socket.
	Socket string
	// Client calls it.
	Client *client.Client

	dir     string
	process *exec.Cmd
}

// running is the daemon of this test binary; nil before the first Start.
var running *Daemon

// Main runs the tests as runnertest.Main does, and ends the daemon. TestMain calls it.
func Main(m *testing.M) { os.Exit(M{M: runnertest.M{M: m}}.Run()) }

// M runs tests as Main does, for a TestMain with more work.
type M struct{ runnertest.M }

// Run runs the tests and returns the exit code.
func (m M) Run() int {
	code := m.M.Run()
	if running != nil {
		if err := running.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// Start returns the daemon of this test binary, which has Image and Bare. It skips the test if a part is missing.
func Start(t testing.TB) *Daemon {
	t.Helper()
	sshtest.RequirePart(t, "docker.io", dockerd)
	sshtest.RequirePart(t, "busybox", busybox)
	if os.Geteuid() != 0 {
		t.Skip("part missing: root, for a Docker daemon")
	}
	d, err := start()
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Client.Close() }) // always nil; it closes idle connections
	return d
}

var start = sync.OnceValues(func() (*Daemon, error) {
	dir, err := os.MkdirTemp("", "dockertest")
	if err != nil {
		return nil, err
	}
	d := &Daemon{dir: dir, Socket: filepath.Join(dir, "s")}
	if d.Client, err = client.New(client.WithHost("unix://" + d.Socket)); err != nil {
		return nil, err
	}
	running = d
	if err := writeCerts(d.Certs()); err != nil {
		return nil, err
	}
	if err := d.Launch(); err != nil {
		return nil, err
	}
	if err := d.load(Image, BusyboxFiles, "ENV PATH=/bin", "ENV COLOUR=of-the-image", `CMD ["sh"]`); err != nil {
		return nil, err
	}
	return d, d.load(Bare, func(*tar.Writer) error { return nil })
})

// Load makes an image with the files of Image and these instructions of a Dockerfile.
func (d *Daemon) Load(t testing.TB, ref string, instructions ...string) {
	t.Helper()
	require.NoError(t, d.load(ref, BusyboxFiles, append(instructions, "ENV PATH=/bin")...))
}

// Launch starts the daemon's process, and waits until it answers. It is for tests that have killed it.
func (d *Daemon) Launch() error {
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	for _, name := range []string{"pid", "exec/containerd/containerd.pid"} {
		_ = os.Remove(filepath.Join(d.dir, name)) // of a daemon that was killed: another process may have the number now
	}
	d.process = exec.Command(dockerd, "--data-root", filepath.Join(d.dir, "data"), "--exec-root",
		filepath.Join(d.dir, "exec"), "--pidfile", filepath.Join(d.dir, "pid"), "-H", "unix://"+d.Socket,
		"--iptables=false", "--ip6tables=false", "--bridge=none", "-H", "tcp://127.0.0.1:0", "--tlsverify",
		"--tlscacert", filepath.Join(d.Certs(), "ca.pem"), "--tlscert", filepath.Join(d.Certs(), "cert.pem"),
		"--tlskey", filepath.Join(d.Certs(), "key.pem"))
	d.process.Stdout, d.process.Stderr = log, log
	// A test binary that panics or times out does not reach stop. The signal is for the end of the thread that starts the
	// daemon, and Go keeps its threads.
	d.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := d.process.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err = d.Client.Ping(ctx, client.PingOptions{}); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			said, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			return fmt.Errorf("start dockerd: %w\n%s", err, said[max(0, len(said)-4<<10):])
		}
	}
}

// Kill ends the daemon's process by SIGKILL. Its containers live on.
func (d *Daemon) Kill() {
	_ = d.process.Process.Kill() // it runs
	_ = d.process.Wait()         // it was killed
}

// KillContainerd ends the daemon's containerd by SIGKILL. The daemon starts it again.
func (d *Daemon) KillContainerd(t testing.TB) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.dir, "exec/containerd/containerd.pid"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// FillDisk leaves the daemon no room for another container. empty undoes that.
func (d *Daemon) FillDisk(t testing.TB) (empty func()) {
	t.Helper()
	at := filepath.Join(d.dir, "data/containers")
	require.NoError(t, unix.Mount("tmpfs", at, "tmpfs", 0, "size=4k,nr_inodes=1"))
	return func() { require.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) }
}

// Dial connects to the daemon.
func (d *Daemon) Dial(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", d.Socket)
}

// Containers returns the names of all containers, of all volumes without a program, and of all networks that tests have
// made.
func (d *Daemon) Containers(t testing.TB) []string {
	t.Helper()
	var names []string
	for _, c := range d.List(t) {
		names = append(names, strings.Join(c.Names, ",")+" "+string(c.State))
	}
	volumes, err := d.Client.VolumeList(context.Background(), client.VolumeListOptions{})
	require.NoError(t, err)
	for _, v := range volumes.Items {
		if !strings.HasPrefix(v.Name, "stepmux-") {
			names = append(names, "volume "+v.Name)
		}
	}
	networks, err := d.Client.NetworkList(context.Background(), client.NetworkListOptions{})
	require.NoError(t, err)
	for _, n := range networks.Items {
		if !slices.Contains([]string{"none", "host", "bridge"}, n.Name) {
			names = append(names, "network "+n.Name)
		}
	}
	return names
}

// List returns all containers.
func (d *Daemon) List(t testing.TB) []container.Summary {
	t.Helper()
	found, err := d.Client.ContainerList(context.Background(), client.ContainerListOptions{All: true})
	require.NoError(t, err)
	return slices.DeleteFunc(found.Items, func(c container.Summary) bool {
		// It was removed: the daemon's list is a copy, which is updated later.
		return len(c.Names) == 0 && c.State == container.StateDead
	})
}

// RemoveAll removes all containers.
func (d *Daemon) RemoveAll(t testing.TB) {
	t.Helper()
	for _, c := range d.List(t) {
		_, err := d.Client.ContainerRemove(context.Background(), c.ID,
			client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) { // it may be gone, or its removal be under way
			require.NoError(t, err)
		}
	}
}

func (d *Daemon) stop() error {
	_ = d.Client.Close()                          // always nil
	_ = d.process.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	killer := time.AfterFunc(startTimeout, func() { _ = d.process.Process.Kill() })
	defer killer.Stop()
	_ = d.process.Wait() // its status says nothing
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, d.dir+"/") {
			_ = unix.Unmount(at, unix.MNT_DETACH) // the removal reports a failure
		}
	}
	return rmtree.Remove(d.dir)
}

// load makes an image of files.
func (d *Daemon) load(ref string, files func(*tar.Writer) error, instructions ...string) error {
	var text bytes.Buffer
	archive := tar.NewWriter(&text)
	if err := files(archive); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	loaded, err := d.Client.ImageImport(context.Background(), client.ImageImportSource{Source: &text, SourceName: "-"},
		ref, client.ImageImportOptions{Changes: instructions})
	if err != nil {
		return fmt.Errorf("load image %s: %w", ref, err)
	}
	defer loaded.Close()
	_, err = new(bytes.Buffer).ReadFrom(loaded)
	return err
}

// BusyboxFiles writes the files of Image to a tar archive: busybox, a link for each of its commands, and the libraries
// it may need.
func BusyboxFiles(archive *tar.Writer) error { return machineFiles(archive, nil, "") }

// machineFiles writes the files of Image, more programs, by their names in the image, and more lines of /etc/passwd.
func machineFiles(archive *tar.Writer, programs map[string]string, users string) error {
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return err
	}
	files := map[string]string{"bin/busybox": busybox}
	maps.Copy(files, programs)
	for _, program := range slices.Collect(maps.Values(files)) {
		libraries, _ := exec.Command("ldd", program).Output() // fails for a static one
		for word := range strings.FieldsSeq(string(libraries)) {
			if filepath.IsAbs(word) {
				files[word[1:]] = word
			}
		}
	}
	for name, from := range files {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := writeFile(archive, tar.Header{Name: name, Mode: 0o755}, text); err != nil {
			return err
		}
	}
	for name := range strings.FieldsSeq(string(applets)) {
		if name == "busybox" {
			continue
		}
		link := tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"}
		if err := writeFile(archive, link, nil); err != nil {
			return err
		}
	}
	if err := writeFile(archive, tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil); err != nil {
		return err
	}
	users = "root:x:0:0:root:/:/bin/sh\n" + users
	return writeFile(archive, tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte(users))
}

func writeFile(archive *tar.Writer, header tar.Header, text []byte) error {
	header.Size = int64(len(text))
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	_, err := archive.Write(text)
	return err
}
