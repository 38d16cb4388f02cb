package jobcache

import (
	"archive/zip"
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/artifactstest"
	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/transfer"
)

// rig is a project with a directory of caches and an object store.
type rig struct {
	*artifactstest.Server
	t      *testing.T
	dir    string
	file   string // the archive
	log    bytes.Buffer
	client *transfer.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Server: artifactstest.New(t), t: t, dir: t.TempDir()}
	r.file = filepath.Join(t.TempDir(), "key", "cache.zip")
	client, err := transfer.New(transfer.Config{
		Retries: 2, RetryTime: time.Millisecond, Log: transfer.Log{To: &r.log},
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r.client = client
	require.NoError(t, os.MkdirAll(filepath.Join(r.dir, "deps"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "deps", "a"), []byte("A"), 0o644))
	return r
}

func (r *rig) save(change func(*SaveConfig)) error {
	log := transfer.Log{To: &r.log}
	cfg := SaveConfig{
		File: r.file, Format: archive.Zip, Level: "default", Log: log,
		Files: archive.Selection{Dir: r.dir, Paths: []string{"deps"}, Info: log.Info, Warn: log.Warn},
	}
	if change != nil {
		change(&cfg)
	}
	return Save(r.t.Context(), r.client, cfg)
}

func (r *rig) restore(change func(*RestoreConfig)) (string, error) {
	cfg := RestoreConfig{Dir: r.t.TempDir(), File: r.file, Log: transfer.Log{To: &r.log}}
	if change != nil {
		change(&cfg)
	}
	return cfg.Dir, Restore(r.t.Context(), r.client, cfg)
}

func (r *rig) from(urls ...string) func(*RestoreConfig) {
	return func(cfg *RestoreConfig) {
		cfg.File = filepath.Join(r.t.TempDir(), "new", "cache.zip")
		for _, url := range urls {
			cfg.Sources = append(cfg.Sources, Source{URL: url})
		}
	}
}

func requireA(t *testing.T, dir string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "deps", "a"))
	require.NoError(t, err)
	require.Equal(t, "A", string(data))
}

func TestACacheOnThisMachineComesBack(t *testing.T) {
	for _, format := range []archive.Format{archive.Zip, archive.TarZstd, archive.ZipZstd} {
		r := newRig(t)
		require.NoError(t, r.save(func(cfg *SaveConfig) {
			cfg.Format, cfg.Metadata = format, map[string]string{"CacheKey": "main", "": "dropped"}
		}))
		dir, err := r.restore(nil)
		require.NoError(t, err)
		requireA(t, dir)
		data, err := os.ReadFile(filepath.Join(filepath.Dir(r.file), "metadata.json"))
		require.NoError(t, err)
		require.JSONEq(t, `{"cachekey":"main"}`, string(data))
		require.Contains(t, r.log.String(), "No URL provided, cache will not be uploaded")
		left, err := os.ReadDir(filepath.Dir(r.file))
		require.NoError(t, err)
		require.Len(t, left, 2)
	}
}

func TestAnArchiveThatIsUpToDateStays(t *testing.T) {
	r := newRig(t)
	url := func(cfg *SaveConfig) { cfg.URL, cfg.CheckURL = r.Presigned("k"), r.Presigned("k") }
	require.NoError(t, r.save(nil))
	before, err := os.Stat(r.file)
	require.NoError(t, err)
	require.NoError(t, r.save(url))
	require.Contains(t, r.log.String(), "The archive is up to date, but not on the server.")
	data, _ := r.Object("k")
	require.NotEmpty(t, data)
	require.NoError(t, r.save(url))
	require.Contains(t, r.log.String(), "Archive is up to date!")
	after, err := os.Stat(r.file)
	require.NoError(t, err)
	require.Equal(t, before.ModTime(), after.ModTime())

	// A deleted file shows in the time of its directory.
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "deps", "b"), nil, 0o644))
	future := time.Now().Add(time.Hour)
	require.NoError(t, os.Remove(filepath.Join(r.dir, "deps", "b")))
	require.NoError(t, os.Chtimes(filepath.Join(r.dir, "deps"), future, future))
	require.NoError(t, r.save(nil))
	after, err = os.Stat(r.file)
	require.NoError(t, err)
	require.NotEqual(t, before.ModTime(), after.ModTime())
}

func TestACacheGoesToAPresignedURLAndComesFromIt(t *testing.T) {
	r := newRig(t)
	r.Answer = func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n > 0 {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	require.NoError(t, r.save(func(cfg *SaveConfig) {
		cfg.URL = r.Presigned("project/key")
		cfg.Header = http.Header{"X-Amz-Meta-Cachekey": {"main"}, "Content-Type": {"application/x"}}
	}))
	data, header := r.Object("project/key")
	want, err := os.ReadFile(r.file)
	require.NoError(t, err)
	require.Equal(t, want, data)
	require.Equal(t, "main", header.Get("X-Amz-Meta-Cachekey"))
	require.Equal(t, "application/x", header.Get("Content-Type"))
	require.NotEmpty(t, header.Get("Last-Modified"))
	header.Set("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")

	var file string
	dir, err := r.restore(func(cfg *RestoreConfig) {
		r.from(r.Presigned("project/key"))(cfg)
		file = cfg.File
	})
	require.NoError(t, err)
	requireA(t, dir)
	metadata, err := os.ReadFile(filepath.Join(filepath.Dir(file), "metadata.json"))
	require.NoError(t, err)
	require.JSONEq(t, `{"cachekey":"main"}`, string(metadata))
	require.NotContains(t, r.log.String(), "topsecret")
	require.Contains(t, r.log.String(), "Uploading cache.zip to "+r.URL+"/store/project/key\n")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, header.Get("Last-Modified"), info.ModTime().UTC().Format(http.TimeFormat))
}

// Symptom: the object store kept the beginning of the other job's archive, and the upload failed.
func TestAnArchiveThatAnotherJobReplacesIsUploadedAsItWas(t *testing.T) {
	r := newRig(t)
	var was []byte
	r.Answer = func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n > 0 {
			return false
		}
		was, _ = os.ReadFile(r.file)
		other := r.file + ".other"
		assert.NoError(t, os.WriteFile(other, bytes.Repeat([]byte("x"), 2*len(was)), 0o600))
		assert.NoError(t, os.Rename(other, r.file))
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	require.NoError(t, r.save(func(cfg *SaveConfig) { cfg.URL = r.Presigned("k") }))
	data, _ := r.Object("k")
	require.Equal(t, was, data)
}

func TestAnArchiveThatIsNewEnoughIsNotDownloaded(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.save(func(cfg *SaveConfig) { cfg.URL = r.Presigned("k") }))
	for _, source := range []Source{
		{URL: r.Presigned("k"), HeadURL: r.Presigned("k")}, {URL: r.Presigned("k")},
	} {
		n := len(r.Requests())
		dir, err := r.restore(func(cfg *RestoreConfig) { cfg.Sources = []Source{source} })
		require.NoError(t, err)
		requireA(t, dir)
		require.Len(t, r.Requests(), n+1)
	}
	require.Equal(t, http.MethodHead, r.Requests()[1].Method)
	require.Contains(t, r.log.String(), "cache.zip is up to date")
	require.NotContains(t, r.log.String(), "Downloading")
}

//stepmux:faults artifacts | A cache that is not there counts as restored, so that no other key is tried
//stepmux:with remote/commands.TestExitCodesAreThoseThatTheScriptsExpect
func TestAMissIsAnError(t *testing.T) {
	r := newRig(t)
	_, err := r.restore(nil)
	require.ErrorIs(t, err, ErrMiss)
	require.NoError(t, r.save(nil))
	for _, source := range []Source{{URL: r.Presigned("none")}, {URL: r.Presigned("none"), HeadURL: r.Presigned("none")}} {
		_, err = r.restore(func(cfg *RestoreConfig) { cfg.Sources = []Source{source} })
		require.ErrorIs(t, err, ErrMiss)
	}
	_, err = r.restore(r.from(r.URL + "/store/k?wrong=signature"))
	require.ErrorIs(t, err, ErrMiss)
	require.ErrorContains(t, err, "403 Forbidden (some servers answer so for an object that is not there)")
	require.NotContains(t, err.Error(), "signature")
	_, err = r.restore(func(cfg *RestoreConfig) { cfg.File = "" })
	require.ErrorContains(t, err, "give --file")
}

func TestTheAlternateIsUsedAfterAMiss(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.save(func(cfg *SaveConfig) { cfg.URL = r.Presigned("old") }))
	dir, err := r.restore(r.from(r.Presigned("new"), r.Presigned("old")))
	require.NoError(t, err)
	requireA(t, dir)

	renamed := filepath.Join(t.TempDir(), "hashed", "cache.zip")
	require.NoError(t, r.save(func(cfg *SaveConfig) { cfg.File, cfg.AlternateFile = renamed, r.file }))
	require.FileExists(t, renamed)
	require.NoFileExists(t, r.file)
}

func TestALargeArchiveStaysOnThisMachine(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.save(func(cfg *SaveConfig) { cfg.URL, cfg.MaxUpload = r.Presigned("k"), 10 }))
	require.Empty(t, r.Requests())
	require.FileExists(t, r.file)
	require.Contains(t, r.log.String(), "is too big (Limit is set to 10)")
}

func TestNothingToKeepIsSaid(t *testing.T) {
	r := newRig(t)
	require.ErrorIs(t, r.save(func(cfg *SaveConfig) { cfg.Files.Paths = []string{"none"} }), ErrNoFiles)
	require.NoFileExists(t, r.file)
	require.Contains(t, r.log.String(), "WARNING: none: no matching files")
}

func TestAFailedUploadIsAnError(t *testing.T) {
	r := newRig(t)
	err := r.save(func(cfg *SaveConfig) { cfg.URL = r.URL + "/store/k?sig=secret" })
	require.ErrorContains(t, err, "upload the cache: "+r.URL+" answers 403 Forbidden")
	require.NotContains(t, err.Error(), "secret")
	require.Len(t, r.Requests(), 1)
}

// An older archive stays usable when a download breaks off, and when an archive is hostile nothing is left outside.
//
//stepmux:faults artifacts | A cache that broke off while it was downloaded or written replaces the older one
//stepmux:with remote/archive.TestReplaceLeavesTheOldFileUntilTheNewOneIsComplete
func TestABrokenDownloadReplacesNothing(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.save(nil))
	r.Answer = func(w http.ResponseWriter, _ *http.Request, _ int) bool {
		w.Header().Set("Content-Length", "1000")
		w.Header().Set("Last-Modified", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		_, _ = w.Write([]byte("PK"))
		return true
	}
	_, err := r.restore(func(cfg *RestoreConfig) { cfg.Sources = []Source{{URL: r.Presigned("k")}} })
	require.ErrorContains(t, err, "download the cache: unexpected EOF (tried 3 times)")
	dir, err := r.restore(nil)
	require.NoError(t, err)
	requireA(t, dir)
	left, err := os.ReadDir(filepath.Dir(r.file))
	require.NoError(t, err)
	require.Len(t, left, 2)
}

func TestAHostileArchiveIsRefused(t *testing.T) {
	r := newRig(t)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	_, err := z.Create("../evil")
	require.NoError(t, err)
	require.NoError(t, z.Close())
	r.Put("k", b.Bytes(), nil)
	dir, err := r.restore(r.from(r.Presigned("k")))
	require.ErrorContains(t, err, "unpack the cache: unpack \"../evil\"")
	require.NoFileExists(t, filepath.Join(filepath.Dir(dir), "evil"))
	r.Put("k", []byte(strings.Repeat("<html>", 10)), nil)
	_, err = r.restore(r.from(r.Presigned("k")))
	require.ErrorContains(t, err, "the file is neither a zip archive")
}

// The disk of a VM filled up with the caches of branches that were long gone.
func TestCachesThatNobodyUsesAreRemoved(t *testing.T) {
	r := newRig(t)
	caches, outside := t.TempDir(), t.TempDir()
	long := time.Now().Add(-keepUnused - time.Hour)
	cache := func(in, name string) string {
		dir := filepath.Join(caches, in, name)
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cache.zip"), []byte("x"), 0o600))
		require.NoError(t, os.Chtimes(dir, long, long))
		return dir
	}
	unused, saved, restored := cache("1", "unused"), cache("1", "saved"), cache("2", "restored")
	require.NoError(t, os.Mkdir(filepath.Join(outside, "old"), 0o700))
	require.NoError(t, os.Chtimes(filepath.Join(outside, "old"), long, long))
	require.NoError(t, os.Symlink(outside, filepath.Join(caches, "link")))
	_, err := r.restore(func(cfg *RestoreConfig) { cfg.File = filepath.Join(restored, "cache.zip") })
	require.Error(t, err, "it is no archive")
	require.NoError(t, r.save(func(cfg *SaveConfig) {
		cfg.File, cfg.Caches = filepath.Join(saved, "cache.zip"), caches
	}))
	require.NoDirExists(t, unused)
	require.FileExists(t, filepath.Join(restored, "cache.zip"))
	require.FileExists(t, filepath.Join(saved, "cache.zip"))
	require.DirExists(t, filepath.Join(outside, "old"))
}

// Symptoms: a pipe among the caches held up every cache/save of the user for good. By a link to the directory of all
// caches whole projects were removed, and by a link in its place files of the build that saved.
func TestASweepFollowsNoLinkAndWaitsForNoPipe(t *testing.T) {
	r := newRig(t)
	caches, outside := t.TempDir(), t.TempDir()
	long := time.Now().Add(-keepUnused - time.Hour)
	used, precious := filepath.Join(caches, "1", "used"), filepath.Join(outside, "project", "precious")
	for _, dir := range []string{used, precious} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
	}
	for _, dir := range []string{filepath.Dir(used), precious} {
		require.NoError(t, os.Chtimes(dir, long, long))
	}
	require.NoError(t, unix.Mkfifo(filepath.Join(caches, "pipe"), 0o600))
	require.NoError(t, os.Symlink(".", filepath.Join(caches, "all")))
	require.NoError(t, r.save(func(cfg *SaveConfig) { cfg.Caches = caches }))
	require.DirExists(t, used)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(outside, link))
	require.NoError(t, r.save(func(cfg *SaveConfig) { cfg.Caches = link }))
	require.DirExists(t, precious)
}

// Symptoms: a signal did not end the removal of many large caches. A directory without permissions in a cache, which
// another job had put there, was never removed.
// Symptom: what a save that was killed had written stayed as long as its cache was used.
func TestASweepRemovesFilesOfSavesThatWereKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cache := filepath.Join(dir, "project", "key")
	require.NoError(t, os.MkdirAll(cache, 0o700))
	old, files := time.Now().Add(-25*time.Hour), []string{
		filepath.Join(cache, "cache.zip"), filepath.Join(cache, ".cache.zip.part-2"),
		filepath.Join(cache, ".cache.zip.part-1"),
		filepath.Join(dir, "project", ".artifacts-1"),
	}
	for i, file := range files {
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		if i != 1 {
			require.NoError(t, os.Chtimes(file, old, old))
		}
	}
	Sweep(t.Context(), dir)
	for i, file := range files {
		if i < 2 {
			require.FileExists(t, file)
		} else {
			require.NoFileExists(t, file)
		}
	}
}

func TestASweepRemovesAllOfACacheUntilItsContextEnds(t *testing.T) {
	caches := t.TempDir()
	unused := filepath.Join(caches, "1", "unused")
	closed := filepath.Join(unused, "closed")
	require.NoError(t, os.MkdirAll(closed, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(closed, "file"), nil, 0o600))
	require.NoError(t, os.Chmod(closed, 0))
	t.Cleanup(func() { _ = os.Chmod(closed, 0o700) }) // or the directory of the test cannot be removed
	long := time.Now().Add(-keepUnused - time.Hour)
	require.NoError(t, os.Chtimes(unused, long, long))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	Sweep(ctx, caches)
	require.DirExists(t, closed)
	Sweep(t.Context(), caches)
	require.NoDirExists(t, unused)
}

// Symptom: a job saved a cache again that another job was just removing, and its new archive was removed with the old.
func TestACacheIsSavedWhileASweepRemovesItsPast(t *testing.T) {
	r := newRig(t)
	caches := t.TempDir()
	dir := filepath.Join(caches, "1", "key")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	const files = 5000
	name := func(i int) string { return filepath.Join(dir, strconv.Itoa(i)) }
	for i := range files {
		require.NoError(t, os.WriteFile(name(i), nil, 0o600))
	}
	long := time.Now().Add(-keepUnused - time.Hour)
	require.NoError(t, os.Chtimes(dir, long, long))
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		Sweep(t.Context(), caches)
	}()
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(dir)
		return err != nil || len(entries) < files
	}, time.Minute, time.Millisecond, "the sweep has begun")
	file := filepath.Join(dir, "cache.zip")
	require.NoError(t, r.save(func(cfg *SaveConfig) { cfg.File = file }))
	<-swept
	require.FileExists(t, file)
	entries, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing else is left")
}

// Symptom: a build without CI_PROJECT_ID is a project of its own. Each left an empty directory for good, and each later
// cache/save looked into all of them.
func TestTheDirectoryOfAProjectWithoutCachesIsRemoved(t *testing.T) {
	caches := t.TempDir()
	long := time.Now().Add(-keepUnused - time.Hour)
	project := func(name string, when time.Time, within ...string) string {
		dir := filepath.Join(caches, name)
		require.NoError(t, os.MkdirAll(filepath.Join(append([]string{dir}, within...)...), 0o700))
		require.NoError(t, os.Chtimes(dir, when, when))
		return dir
	}
	empty, full, fresh := project("1", long), project("2", long, "key"), project("3", time.Now())
	Sweep(t.Context(), caches)
	require.NoDirExists(t, empty)
	require.DirExists(t, filepath.Join(full, "key"))
	require.DirExists(t, fresh, "another job may be about to save a cache there")
}

// Symptom: it held up cache/restore for good.
func TestAPipeIsNoArchive(t *testing.T) {
	r := newRig(t)
	require.NoError(t, os.Mkdir(filepath.Dir(r.file), 0o700))
	require.NoError(t, unix.Mkfifo(r.file, 0o600))
	_, err := r.restore(nil)
	require.ErrorContains(t, err, "is not a regular file")
}

// Symptom: a file that could not be read lost the whole cache. The kernel has such a file.
func TestACacheWithAFileThatCannotBeReadIsKept(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.save(func(cfg *SaveConfig) {
		cfg.Files.Dir, cfg.Files.Paths = "/proc/self", []string{"mem", "comm"}
	}))
	require.Contains(t, r.log.String(), "WARNING: mem: only a part of it is archived: input/output error")
	dir, err := r.restore(nil)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "comm"))
}
