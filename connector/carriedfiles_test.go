package connector

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/contents"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/reach"
)

// servedFile is a file of a service. It counts the bytes that are read of it.
type servedFile struct {
	*bytes.Reader
	digest string
	read   *atomic.Int64
}

func (f servedFile) Content() (digest string, size int64) { return f.digest, f.Size() }

func (f servedFile) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	f.read.Add(int64(n))
	return n, err
}

// served serves a file by HTTP, as the services of actions do.
type served struct {
	text     []byte
	digest   string
	services *Services
	read     atomic.Int64
}

type flushed struct{ http.ResponseWriter }

func (w flushed) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status)
	w.ResponseWriter.(http.Flusher).Flush()
}

func (w flushed) ReadFrom(r io.Reader) (int64, error) { return io.Copy(w.ResponseWriter, r) }

func serveFile(t *testing.T, size int) *served {
	s := &served{text: make([]byte, size)}
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(s.text)
	sum := sha256.Sum256(s.text)
	s.digest = hex.EncodeToString(sum[:])
	s.services = serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		file := servedFile{bytes.NewReader(s.text), s.digest, &s.read}
		if r.Method == http.MethodPost { // it has been uploaded
			w.Header().Set("Content-Length", "2")
			flushed{w}.WriteHeader(http.StatusOK)
			_, _ = io.Copy(w, io.LimitReader(file, 0))
			_, _ = io.WriteString(w, "ok")
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream") // else some bytes are read to find it
		http.ServeContent(flushed{w}, r, "", time.Time{}, file)
	})
	return s
}

// get gets bytes of the file, and compares them.
func (s *served) get(t *testing.T, client *http.Client, url string, from, to int) {
	req, err := http.NewRequest(http.MethodGet, url, nil) //nolint:noctx // bounded by the job
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, s.text[from:to]) {
		t.Errorf("bytes %d to %d: %d bytes, %v", from, to, len(got), err)
	}
}

// job runs a build whose processes get the file in four parts at once, the first of them twice, and returns how many of
// its bytes came from the service.
func (s *served) job(t *testing.T, store *contents.Store) int64 {
	t.Helper()
	before := s.read.Load()
	of := &reachingServer{Server: reach.New("", func() *contents.Store { return store }), job: func(url string) {
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		quarter := len(s.text) / 4
		s.get(t, client, url, 0, quarter)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { s.get(t, client, url, i*quarter, (i+1)*quarter) })
		}
		all.Wait()
	}}
	of.last = &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // the published spelling
	c := connectTo(t, of)
	_, err := c.Execute(sshtest.Within(t), Job{Job: &pb.Job{Script: "true"}, Services: always(s.services)}, io.Discard)
	require.NoError(t, err)
	of.Close()
	return s.read.Load() - before
}

// A file of which jobs on a VM were told all parts comes from there the next time, also if its parts came by several
// connections.
//
//stepmux:faults artifacts | A cache of an action that a VM keeps is damaged or gone | the job gets it from the manager,
//stepmux:more and the VM keeps it again
func TestAFileOfAServiceIsTakenFromTheVM(t *testing.T) {
	const size = 4 << 20
	s := serveFile(t, size)
	store := &contents.Store{Dir: t.TempDir(), Bytes: 1 << 30, Age: time.Hour}
	kept := filepath.Join(store.Dir, s.digest)
	require.EqualValues(t, size+size/4, s.job(t, store))
	require.Zero(t, s.job(t, store))

	require.NoError(t, os.WriteFile(kept, s.text[1:], 0o600))
	require.EqualValues(t, size+size/4, s.job(t, store), "it is damaged")
	require.Zero(t, s.job(t, store))
	require.NoError(t, os.Remove(kept))
	require.EqualValues(t, size+size/4, s.job(t, store), "it is gone")

	// Without room, or if builds share nothing, all comes from the service. Nothing is left.
	require.NoError(t, os.Remove(kept))
	store.Bytes = size - 1
	require.EqualValues(t, size+size/4, s.job(t, store))
	require.EqualValues(t, size+size/4, s.job(t, nil))
	left, err := os.ReadDir(store.Dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// An archive that a job has uploaded stays on the VM: no byte of it comes from the service later.
func TestAnArchiveThatWasUploadedStaysOnTheVM(t *testing.T) {
	s := serveFile(t, 1<<20)
	store := &contents.Store{Dir: t.TempDir(), Bytes: 1 << 30, Age: time.Hour}
	dir := t.TempDir()
	temp := filepath.Join(dir, "jobs", "j-1", "actions", "temp")
	write := func(name, archive string, text []byte) {
		require.NoError(t, os.MkdirAll(filepath.Join(temp, name), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(temp, name, archive), text, 0o600))
	}
	upload := func() {
		of := &reachingServer{
			Server: reach.New(dir, func() *contents.Store { return store }),
			job: func(url string) {
				client := &http.Client{Transport: &http.Transport{}}
				defer client.CloseIdleConnections()
				resp, err := client.Post(url, "text/plain", nil) //nolint:noctx // bounded by the job
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "ok" {
					t.Errorf("%q, %v", text, err)
				}
				if err := os.RemoveAll(temp); err != nil { // as the client does
					t.Error(err)
				}
			},
		}
		of.last = &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // the published spelling
		c := connectTo(t, of)
		_, err := c.Execute(sshtest.Within(t), Job{Job: &pb.Job{Script: "true"}, Services: always(s.services)}, io.Discard)
		require.NoError(t, err)
		of.Close()
	}
	kept := func() []os.DirEntry {
		t.Helper()
		all, err := os.ReadDir(store.Dir)
		require.NoError(t, err)
		return all
	}
	upload()
	require.Empty(t, kept(), "there is no archive")
	write("short", "cache.tgz", s.text[1:])
	write("same size", "cache.tzst", make([]byte, len(s.text)))
	require.NoError(t, os.MkdirAll(filepath.Join(temp, "pipe"), 0o755))
	require.NoError(t, unix.Mkfifo(filepath.Join(temp, "pipe", "cache.tgz"), 0o600))
	upload()
	require.Empty(t, kept(), "none of them is the archive")
	write("the archive", "cache.tzst", s.text)
	upload()
	require.Len(t, kept(), 1)
	require.Zero(t, s.job(t, store))
}

// A file that arrives in part, or with another content than its digest says, is not kept under that.
func TestAFileOfAServiceThatIsNotWholeIsNotKept(t *testing.T) {
	s := serveFile(t, 1<<20)
	store := &contents.Store{Dir: t.TempDir(), Bytes: 1 << 30, Age: time.Hour}
	whole := s.text
	s.text = append(bytes.Clone(whole[:len(whole)-1]), whole[len(whole)-1]+1)
	s.job(t, store)
	require.NoFileExists(t, filepath.Join(store.Dir, s.digest))

	s.text = append(bytes.Clone(whole), 1) // three quarters of it, and a byte
	of := &reachingServer{Server: reach.New("", func() *contents.Store { return store }), job: func(url string) {
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		s.get(t, client, url, 1, len(whole))
	}}
	of.last = &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // the published spelling
	c := connectTo(t, of)
	_, err := c.Execute(sshtest.Within(t), Job{Job: &pb.Job{Script: "true"}, Services: always(s.services)}, io.Discard)
	require.NoError(t, err)
	of.Close()
	parts, err := filepath.Glob(filepath.Join(store.Dir, ".part-*"))
	require.NoError(t, err)
	require.Empty(t, parts)
}
