package project

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/internal/contents"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/proc"
)

// packed is an archive with these files.
func packed(t *testing.T, content map[string]string) *files.Project {
	t.Helper()
	var text bytes.Buffer
	z, err := zstd.NewWriter(&text)
	require.NoError(t, err)
	w := tar.NewWriter(z)
	for name, content := range content {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o640, Size: int64(len(content))}))
		_, err := io.WriteString(w, content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	return projectOf(text.Bytes())
}

func projectOf(text []byte) *files.Project {
	sum := sha256.Sum256(text)
	return &files.Project{
		Digest: hex.EncodeToString(sum[:]), Size: int64(len(text)),
		Open: func(context.Context) (io.ReadSeekCloser, error) { return opened{bytes.NewReader(text)}, nil },
	}
}

type opened struct{ *bytes.Reader }

func (opened) Close() error { return nil }

// build is a build of a VM whose cache is in a directory.
type build struct {
	pb.FilesClient
	p   *Project
	dir string
}

func newBuild(t *testing.T, cache string) *build {
	t.Helper()
	b := &build{dir: t.TempDir()}
	b.p = New(Config{Dir: b.dir, CacheDir: cache, Command: append(runnertest.Command(t), "steps"), Start: proc.Start})
	server, listener := grpc.NewServer(), bufconn.Listen(1<<20)
	b.p.Register(server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	require.NoError(t, err)
	b.FilesClient = pb.NewFilesClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		serving.Wait()
		b.p.Close()
	})
	return b
}

func cacheDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	return filepath.Join(dir, "projects")
}

//stepmux:reliability promises | Files of a project reach each build completely, an archive is sent to a VM once, and
//stepmux:more artifacts survive a restart of the manager
//stepmux:with remote/project.TestAnUploadThatIsCutGoesOn, remote/project.TestAnArchiveThatWasChangedIsNotUsed
//stepmux:with remote/project.TestAFullDiskIsToldAndLeavesRoom, instance/manager.TestFilesOfABuildOutliveTheManager
//stepmux:with instance/manager.TestFilesOfAClusterAreAtEachManager
//stepmux:with instance/manager.TestFilesOfAClusterAreBoundedAndChecked
func TestManyBuildsAtOnceGetAProjectThatIsSentOnce(t *testing.T) {
	t.Parallel()
	cache, vm, sent := cacheDir(t), &files.VM{}, atomic.Int64{}
	p := packed(t, map[string]string{"a/b.txt": "text", "c": "more"})
	open := p.Open
	var builds, asked sync.WaitGroup
	p.Open = func(ctx context.Context) (io.ReadSeekCloser, error) {
		sent.Add(1)
		asked.Wait() // until each build has been told that the archive is not there
		return open(ctx)
	}
	asked.Add(12)
	for range 12 {
		b := &asking{newBuild(t, cache), asked.Done}
		builds.Go(func() {
			dir, _, err := vm.Place(t.Context(), b, 0, p)
			if assertNoError(t, err) {
				text, err := os.ReadFile(filepath.Join(dir, "a/b.txt"))
				assertNoError(t, err)
				if string(text) != "text" {
					t.Errorf("the file has %q", text)
				}
			}
		})
	}
	builds.Wait()
	require.EqualValues(t, 1, sent.Load())
	info, err := os.Stat(cache)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	// A build has one project for good.
	b := newBuild(t, cache)
	first, _, err := vm.Place(t.Context(), b, 0, p)
	require.NoError(t, err)
	again, _, err := vm.Place(t.Context(), b, 0, p)
	require.NoError(t, err)
	require.Equal(t, first, again)
	_, _, err = vm.Place(t.Context(), b, 0, packed(t, map[string]string{"x": "y"}))
	require.Equal(t, codes.AlreadyExists, status.Code(err), "%v", err)
}

// asking is a client that tells when its build has had the first answer.
type asking struct {
	pb.FilesClient
	answered func()
}

func (a *asking) Place(
	ctx context.Context, options ...grpc.CallOption,
) (grpc.BidiStreamingClient[pb.PlaceRequest, pb.PlaceResponse], error) {
	stream, err := a.FilesClient.Place(ctx, options...)
	return &askStream{stream, sync.OnceFunc(a.answered)}, err
}

type askStream struct {
	grpc.BidiStreamingClient[pb.PlaceRequest, pb.PlaceResponse]
	answered func()
}

func (s *askStream) Recv() (*pb.PlaceResponse, error) {
	defer s.answered()
	return s.BidiStreamingClient.Recv()
}

func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

func TestBuildsThatShareNothingDoNotWaitForOneAnother(t *testing.T) {
	t.Parallel()
	vm, p := &files.VM{}, packed(t, map[string]string{"a": "b"})
	for range 3 {
		_, _, err := vm.Place(t.Context(), newBuild(t, ""), 0, p)
		require.NoError(t, err)
	}
}

// Symptom: after one broken upload beside which others waited, all builds of the VM sent each project themselves.
func TestAnUploadThatFailedDoesNotEndTheSharing(t *testing.T) {
	t.Parallel()
	cache, vm := cacheDir(t), &files.VM{}
	placeAtOnce := func(p *files.Project, fails int64) (sent int64) {
		var opened atomic.Int64
		var builds, asked sync.WaitGroup
		open := p.Open
		p.Open = func(ctx context.Context) (io.ReadSeekCloser, error) {
			n := opened.Add(1)
			asked.Wait() // until each build has been told that the archive is not there
			if n <= fails {
				return nil, errors.New("it cannot be fetched")
			}
			return open(ctx)
		}
		var failed atomic.Int64
		asked.Add(12)
		for range 12 {
			b := &asking{newBuild(t, cache), asked.Done}
			builds.Go(func() {
				if _, _, err := vm.Place(t.Context(), b, 0, p); err != nil {
					failed.Add(1)
				}
			})
		}
		builds.Wait()
		require.Equal(t, fails, failed.Load())
		return opened.Load() - fails
	}
	require.EqualValues(t, 1, placeAtOnce(packed(t, map[string]string{"a": "b"}), 1))
	require.EqualValues(t, 1, placeAtOnce(packed(t, map[string]string{"c": "d"}), 0))
}

func TestAnUploadThatIsCutGoesOn(t *testing.T) {
	t.Parallel()
	b, vm := newBuild(t, cacheDir(t)), &files.VM{}
	random := make([]byte, 3<<20)
	_, _ = rand.Read(random)
	p := packed(t, map[string]string{"a": string(random)})
	whole := p.Open
	broken, cut := context.WithCancel(t.Context())
	p.Open = func(ctx context.Context) (io.ReadSeekCloser, error) {
		archive, err := whole(ctx)
		return &cutAt{archive, 2 << 20, cut}, err
	}
	_, progress, err := vm.Place(broken, b, 0, p)
	require.Error(t, err)
	require.True(t, progress)
	from := int64(-1)
	p.Open = func(ctx context.Context) (io.ReadSeekCloser, error) {
		archive, err := whole(ctx)
		return &toldSeek{archive, &from}, err
	}
	dir, _, err := vm.Place(t.Context(), b, 0, p)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "a"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(random, text))
	require.Positive(t, from, "bytes that had arrived are not sent again")
}

// cutAt ends a context once so many bytes were read.
type cutAt struct {
	io.ReadSeekCloser
	left int
	cut  func()
}

func (c *cutAt) Read(p []byte) (int, error) {
	n, err := c.ReadSeekCloser.Read(p)
	if c.left -= n; c.left < 0 {
		c.cut()
	}
	return n, err
}

// toldSeek notes where reading begins.
type toldSeek struct {
	io.ReadSeekCloser
	from *int64
}

func (s *toldSeek) Seek(offset int64, whence int) (int64, error) {
	*s.from = offset
	return s.ReadSeekCloser.Seek(offset, whence)
}

func TestAnArchiveThatWasChangedIsNotUsed(t *testing.T) {
	t.Parallel()
	cache, vm := cacheDir(t), &files.VM{}
	p := packed(t, map[string]string{"a": "b"})
	other, _ := packed(t, map[string]string{"a": "harm"}).Open(t.Context())
	p.Open = func(context.Context) (io.ReadSeekCloser, error) { return other, nil }
	q := *p
	text, err := io.ReadAll(other)
	require.NoError(t, err)
	q.Size = int64(len(text))
	_, _, err = vm.Place(t.Context(), newBuild(t, cache), 0, &q)
	require.ErrorContains(t, err, "the content was changed on its way")

	// One that was changed in the cache is sent again.
	good := packed(t, map[string]string{"a": "b"})
	_, _, err = vm.Place(t.Context(), newBuild(t, cache), 0, good)
	require.NoError(t, err)
	file := filepath.Join(cache, good.Digest)
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("x"), int(good.Size)), 0o600))
	dir, _, err := vm.Place(t.Context(), newBuild(t, cache), 0, good)
	require.NoError(t, err)
	text, err = os.ReadFile(filepath.Join(dir, "a"))
	require.NoError(t, err)
	require.Equal(t, "b", string(text))

	// A directory that others can write keeps nothing.
	require.NoError(t, os.Chmod(cache, 0o777))
	require.NoError(t, os.Remove(file))
	_, _, err = vm.Place(t.Context(), newBuild(t, cache), 0, good)
	require.NoError(t, err)
	require.NoFileExists(t, file)
}

func TestWrongRequestsAreRefused(t *testing.T) {
	t.Parallel()
	b, vm := newBuild(t, cacheDir(t)), &files.VM{}
	for name, p := range map[string]*files.Project{
		"digest": {Digest: "../x", Size: 1}, "size": {Digest: packed(t, nil).Digest, Size: wire.MaxProject + 1},
	} {
		_, _, err := vm.Place(t.Context(), b, 0, p)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
	}
	c := files.Artifacts{Paths: []string{"x"}}.Collect()
	_, err := c.Receive(t.Context(), b)
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	_, _, err = vm.Place(t.Context(), b, 0, projectOf([]byte("no archive at all")))
	require.ErrorContains(t, err, "unpack the project: the file is neither a zip archive nor a tar archive in zstd")
	_, _, err = vm.Place(t.Context(), newBuild(t, cacheDir(t)), 0, packed(t, map[string]string{"../up": "x"}))
	require.ErrorContains(t, err, "it would be outside of the project's directory")
}

func TestAFullDiskIsToldAndLeavesRoom(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("part missing: this test mounts a file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	random := make([]byte, 2<<20)
	_, _ = rand.Read(random)
	b := newBuild(t, filepath.Join(disk, "projects"))
	_, _, err := (&files.VM{}).Place(t.Context(), b, 0, packed(t, map[string]string{"a": string(random)}))
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "no space left on device (free space or inodes on the file system of "+disk)
	left, err := os.ReadDir(filepath.Join(disk, "projects"))
	require.NoError(t, err)
	require.Empty(t, left)

	b = newBuild(t, cacheDir(t)) // the archive has room, its files do not
	require.NoError(t, unix.Mount("tmpfs", b.dir, "tmpfs", 0, "size=1m,mode=0700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(b.dir, unix.MNT_DETACH)) })
	_, _, err = (&files.VM{}).Place(t.Context(), b, 0, packed(t, map[string]string{"a": strings.Repeat("x", 2<<20)}))
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "unpack the project: ")
}

func TestArtifactsAreBoundedAndGoOnAfterABreak(t *testing.T) {
	t.Parallel()
	b := newBuild(t, cacheDir(t))
	dir, _, err := (&files.VM{}).Place(t.Context(), b, 0, nil)
	require.NoError(t, err)
	random := make([]byte, 2<<20)
	_, _ = rand.Read(random)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), random, 0o600))
	small := files.Artifacts{Paths: []string{"a"}, MaxBytes: 1 << 20}.Collect()
	_, err = small.Receive(t.Context(), b)
	require.ErrorContains(t, err, "at most 1048576 are taken")

	taken := ""
	c := files.Artifacts{Paths: []string{"a", "b"}, Dir: t.TempDir(), Take: func(_ context.Context, f *os.File) error {
		taken = f.Name()
		text, err := io.ReadAll(f)
		require.NoError(t, err)
		require.Greater(t, len(text), 2<<20)
		return nil
	}}.Collect()
	ctx, cancel := context.WithCancel(t.Context())
	_, err = c.Receive(ctx, &cutting{b, cancel})
	require.Error(t, err)
	progress, err := c.Receive(t.Context(), b)
	require.NoError(t, err)
	require.True(t, progress)
	require.Contains(t, c.Note, "b: no matching files")
	require.NoError(t, c.Take(t.Context()))
	c.Close()
	require.NoFileExists(t, taken)

	none := files.Artifacts{Paths: []string{"nothing"}}.Collect()
	_, err = none.Receive(t.Context(), b)
	require.NoError(t, err)
	require.NoError(t, none.Take(t.Context()), "Take is not called")
}

// cutting is a client whose streams break after their third message.
type cutting struct {
	pb.FilesClient
	cut func()
}

func (c *cutting) Collect(
	ctx context.Context, req *pb.CollectRequest, options ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.CollectResponse], error) {
	stream, err := c.FilesClient.Collect(ctx, req, options...)
	return &cutStream{stream, 3, c.cut}, err
}

type cutStream struct {
	grpc.ServerStreamingClient[pb.CollectResponse]
	left int
	cut  func()
}

func (s *cutStream) Recv() (*pb.CollectResponse, error) {
	if s.left--; s.left == 0 {
		s.cut()
	}
	return s.ServerStreamingClient.Recv()
}

func TestTheCacheIsSwept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &contents.Store{Dir: dir, Bytes: 10, Age: keepTime}
	for _, text := range []string{"aaaa", "bbbb", "cccc"} {
		p := projectOf([]byte(text))
		u, err := s.Begin(p.Digest, p.Size)
		require.NoError(t, err)
		_, err = io.WriteString(u, text)
		require.NoError(t, err)
		file, err := s.Keep(u)
		require.NoError(t, err)
		file.Close()
	}
	a := projectOf([]byte("aaaa")).Digest
	require.True(t, s.Touch(a), "it is used")
	require.Zero(t, s.Sweep(2, func(digest string) bool { return digest == a }))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2)
	require.True(t, s.Touch(a))
	require.EqualValues(t, 3, s.Sweep(9, func(digest string) bool { return digest == a }))
}

// Symptom: a job that took the right to read a file away, or that removed its work directory, lost all artifacts, and a
// build that had succeeded failed as a failure of the system.
func TestArtifactsThatCannotBeReadAreNoFailure(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]struct {
		change func(t *testing.T, dir string)
		note   string
		files  bool
	}{
		"a file without rights": {func(t *testing.T, dir string) {
			t.Helper()
			if os.Geteuid() == 0 {
				t.Skip("root can read all files")
			}
			require.NoError(t, os.Chmod(filepath.Join(dir, "a"), 0))
		}, "a: left out: permission denied", true},
		"a pipe": {func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
		}, "pipe: it is not a file, a directory or a symbolic link", true},
		"no work directory": {func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, os.RemoveAll(dir))
		}, "the job's work directory cannot be entered any more: no such file or directory", false},
		"a file as work directory": {func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.WriteFile(dir, nil, 0o600))
		}, "the job's work directory cannot be entered any more", false},
		"a work directory that cannot be listed": {func(t *testing.T, dir string) {
			t.Helper()
			if os.Geteuid() == 0 {
				t.Skip("root can list all directories")
			}
			require.NoError(t, os.Chmod(dir, 0o300))
			t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		}, "open the project's directory: ", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBuild(t, cacheDir(t))
			dir, _, err := (&files.VM{}).Place(t.Context(), b, 0, nil)
			require.NoError(t, err)
			for _, name := range []string{"a", "b"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
			}
			harm.change(t, dir)
			taken := false
			c := files.Artifacts{Paths: []string{"*"}, Dir: t.TempDir(), Take: func(_ context.Context, f *os.File) error {
				taken = true
				to := t.TempDir()
				_, err := archive.Extract(t.Context(), f, to, archive.Bounds{})
				require.NoError(t, err)
				require.FileExists(t, filepath.Join(to, "b"))
				return nil
			}}.Collect()
			defer c.Close()
			_, err = c.Receive(t.Context(), b)
			require.NoError(t, err)
			require.Contains(t, c.Note, harm.note)
			require.NoError(t, c.Take(t.Context()))
			require.Equal(t, harm.files, taken)
		})
	}
}
