package commands_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/artifactstest"
	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

func TestMain(m *testing.M) { runnertest.Main(m) }

// vmsEnd runs the VM's end in dir, as the scripts of a GitLab manager do. It returns the exit code, the output and the
// largest memory of the process in bytes.
func vmsEnd(t *testing.T, dir string, env []string, args ...string) (code int, output string, memory int64) {
	t.Helper()
	program, err := runnertest.Program()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + t.TempDir()}, env...)
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	highest := make(chan int64)
	go func() { highest <- highWater(cmd.Process.Pid, ended) }()
	err = cmd.Wait()
	close(ended)
	memory = <-highest
	if err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError), "%s", out.String())
	}
	return cmd.ProcessState.ExitCode(), out.String(), memory
}

var vmHWM = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// highWater samples the largest resident memory of a process until it has ended. (Its rusage would have that of the
// test, in whose memory it begins.)
func highWater(pid int, ended <-chan struct{}) (most int64) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if match := vmHWM.FindSubmatch(status); err == nil && match != nil {
			n, _ := strconv.ParseInt(string(match[1]), 10, 64)
			most = n << 10
		}
		select {
		case <-ticker.C:
		case <-ended:
			return most
		}
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	at := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.WriteFile(at, []byte(content), 0o644))
}

func TestArtifactsOfAStockManagersScripts(t *testing.T) {
	server := artifactstest.New(t)
	dir := t.TempDir()
	write(t, dir, "dist/a", "A")
	write(t, dir, "dist/b.tmp", "B")
	write(t, dir, "own", "O")
	// The order and the flags of the manager's scripts.
	code, out, _ := vmsEnd(t, dir, []string{"WHERE=dist", "LABEL=nightly"}, "artifacts-uploader",
		"--url", server.URL, "--token", artifactstest.Token, "--id", "7", "--timeout", "1h0m0s",
		"--response-header-timeout", "10m0s", "--generate-artifacts-metadata", "--runner-id", "", "--repo-url",
		"https://gitlab.example.com/g/p", "--repo-digest", "0123", "--job-name", "build", "--executor-name", "instance",
		"--runner-name", "r", "--started-at", "2026-01-02T03:04:05Z", "--ended-at", "2026-01-02T03:05:05Z",
		"--schema-version", "unknown", "--metadata-parameter", "CI", "--metadata-parameter", "GITLAB_CI",
		"--path", "$WHERE/", "--path", "missing", "--exclude", "**/*.tmp", "--name", "build-${LABEL}", "--expire-in",
		"1 week",
		"--artifact-format", "zip", "--artifact-type", "archive", "--compression-level", "fast")
	require.Equal(t, 0, code, "%s", out)
	up := server.Uploads()
	require.Len(t, up, 1)
	require.Equal(t, "build-nightly.zip", up[0].Filename)
	require.Contains(t, out, "WARNING: missing: no matching files")
	require.Contains(t, out, `Uploading artifacts as "archive" to coordinator... 201 Created`)
	require.NotContains(t, out, artifactstest.Token)

	other := t.TempDir()
	code, out, _ = vmsEnd(t, other, nil, "artifacts-downloader", "--url", server.URL, "--token", artifactstest.Token,
		"--id", "7")
	require.Equal(t, 0, code, "%s", out)
	data, err := os.ReadFile(filepath.Join(other, "dist/a"))
	require.NoError(t, err)
	require.Equal(t, "A", string(data))
	require.NoFileExists(t, filepath.Join(other, "dist/b.tmp"))
	require.FileExists(t, filepath.Join(other, "build-nightly-statement.json"))

	// All that can come from the environment.
	env := []string{
		"CI_SERVER_URL=" + server.URL, "CI_JOB_TOKEN=" + artifactstest.Token, "CI_JOB_ID=8",
		"ARTIFACT_COMPRESSION_LEVEL=slowest", "TRANSFER_METER_FREQUENCY=1s", "FF_USE_DIRECT_DOWNLOAD=true",
		"CI_SERVER_TLS_CA_FILE=", "STEPMUX_OUTSIDE_LINKS=perhaps",
	}
	code, out, _ = vmsEnd(t, dir, env, "artifacts-uploader", "--path", "own", "--verbose")
	require.Equal(t, 0, code, "%s", out)
	require.Contains(t, out, "\nown\n")
	require.Equal(t, "8", server.Uploads()[1].Job)
	require.Empty(t, server.Uploads()[1].Query)
	code, out, _ = vmsEnd(t, t.TempDir(), env, "artifacts-downloader")
	require.Equal(t, 0, code, "%s", out)
	require.Contains(t, out, "WARNING: STEPMUX_OUTSIDE_LINKS is ignored")
}

func TestACacheOfAStockManagersScripts(t *testing.T) {
	server := artifactstest.New(t)
	dir := t.TempDir()
	write(t, dir, "deps/a", "A")
	write(t, dir, ".cache.env", "CACHE_METADATA=\"{\\\"cachekey\\\":\\\"main\\\"}\"\nCACHE_COMPRESSION_FORMAT='tarzstd'\n")
	archive := filepath.Join(t.TempDir(), "project", "main", "cache.zip")
	code, out, _ := vmsEnd(t, dir, nil, "cache-archiver", "--file", archive, "--timeout", "10", "--path", "deps",
		"--untracked", "--url", server.Presigned("main"), "--header", "Content-Type: application/octet-stream",
		"--header", "X-Amz-Meta-Cachekey: main", "--env-file", ".cache.env", "--max-uploaded-archive-size", "1000000")
	require.Equal(t, 0, code, "%s", out)
	data, header := server.Object("main")
	require.Equal(t, "\x28\xb5\x2f\xfd", string(data[:4]))
	require.Equal(t, "main", header.Get("X-Amz-Meta-Cachekey"))
	metadata, err := os.ReadFile(filepath.Join(filepath.Dir(archive), "metadata.json"))
	require.NoError(t, err)
	require.JSONEq(t, `{"cachekey":"main"}`, string(metadata))

	other := t.TempDir()
	code, out, _ = vmsEnd(t, other, nil, "cache-extractor", "--file", filepath.Join(t.TempDir(), "cache.zip"),
		"--timeout", "10", "--url", server.Presigned("new"), "--head-url", server.Presigned("new"),
		"--alternate-url", server.Presigned("main"), "--alternate-head-url", server.Presigned("main"))
	require.Equal(t, 0, code, "%s", out)
	require.FileExists(t, filepath.Join(other, "deps/a"))
	require.NotContains(t, out, "topsecret")
}

func TestExitCodesAreThoseThatTheScriptsExpect(t *testing.T) {
	server := artifactstest.New(t)
	server.Answer = func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if r.URL.Path == "/api/v4/jobs/413/artifacts" {
			artifactstest.Refuse(w, 413, "too large")
			return true
		}
		return false
	}
	dir := t.TempDir()
	write(t, dir, "a", "A")
	job := func(id string, args ...string) []string {
		return append(args, "--url", server.URL, "--token", artifactstest.Token, "--id", id)
	}
	cloud := []string{"cache-extractor", "--file", "c", "--gocloud-url", "s3://b/k"}
	rar := []string{"cache-archiver", "--file", "c.zip", "--path", "a", "--compression-format", "rar"}
	for want, c := range map[string]struct {
		code int
		args []string
	}{
		"ERROR: No files to upload":               {0, job("1", "artifacts-uploader", "--path", "none")},
		"WARNING: No files to cache.":             {0, []string{"cache-archiver", "--file", "c.zip", "--path", "none"}},
		"FATAL: there is no cache of this name":   {1, []string{"cache-extractor", "--file", "none.zip"}},
		"FATAL: the cache's archive is missing":   {1, []string{"cache-extractor"}},
		"FATAL: upload artifacts as \"archive\"":  {1, job("413", "artifacts-uploader", "--path", "a")},
		"FATAL: download artifacts of job 5":      {1, job("5", "artifacts-downloader")},
		"FATAL: the job's number is missing":      {1, job("0", "artifacts-downloader")},
		"FATAL: the server or the job's token is": {1, []string{"artifacts-uploader", "--path", "a"}},
		"FATAL: --gocloud-url: stepmux has no":    {1, cloud},
		"FATAL: --concurrency: stepmux has no":    {1, []string{"cache-archiver", "--file", "c", "--concurrency", "16"}},
		"FATAL: read --env-file":                  {1, []string{"cache-archiver", "--file", "c", "--env-file", "none"}},
		"unknown flag: --parallel":                {2, []string{"cache-archiver", "--parallel"}},
		"the command takes flags only, not \"x\"": {2, []string{"cache-archiver", "x"}},
		"--metadata is not an object of JSON":     {2, []string{"cache-archiver", "--metadata", "[]"}},
		"write KEY:VALUE":                         {2, []string{"cache-archiver", "--header", "bad"}},
		"write a time as 90s or 1h30m":            {2, []string{"cache-archiver", "--timeout", "soon"}},
		"default is used":                         {1, []string{"artifacts-uploader", "--compression-level", "11"}},
		"\"rar\" is not one of zip, tarzstd":      {0, rar},
		"Example:":                                {0, []string{"artifacts-uploader", "--help"}},
	} {
		code, out, _ := vmsEnd(t, dir, nil, c.args...)
		require.Equal(t, c.code, code, "%v: %s", c.args, out)
		require.Contains(t, out, want, "%v", c.args)
		require.NotContains(t, out, artifactstest.Token)
	}
}

func TestAFailedCloneShowsNoSecretOfItsURL(t *testing.T) {
	url := "https://user:secret@example.com/g/p?key=secret"
	code, out, _ := vmsEnd(t, t.TempDir(), nil, "steps", "clone", "--url", url)
	require.Equal(t, 1, code)
	require.Equal(t, "stepmux: clone https://example.com/g/p: the repository's URL has a user; give user and password by "+
		"themselves\n", out)
}

// The most memory that a command takes, however large the files are.
const mostMemory = 64 << 20

// large is the size of the artifact and of the cache. The first upload has a GiB in any case.
func large(t *testing.T) int64 {
	if os.Getenv("STEPMUX_LARGE") != "" {
		return 1 << 30
	}
	t.Log("256 MiB; make prove WHAT=large for a GiB")
	return 256 << 20
}

//stepmux:faults artifacts | Memory grows with the artifact
func TestMemoryDoesNotGrowWithTheFiles(t *testing.T) {
	racefree.Only(t)
	dir, other := t.TempDir(), t.TempDir()
	generate := func(name string, size int64) {
		file, err := os.Create(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, file.Truncate(size))
		require.NoError(t, file.Close())
	}
	size := large(t)
	generate("gibibyte", 1<<30)
	generate("large", size)
	server := artifactstest.New(t)
	job := func(id string, args ...string) []string {
		return append(args, "--url", server.URL, "--token", artifactstest.Token, "--id", id)
	}
	run := func(dir string, args ...string) {
		begin := time.Now()
		code, out, memory := vmsEnd(t, dir, nil, args...)
		require.Equal(t, 0, code, "%s", out)
		t.Logf("%v: %d MiB of memory, %v", args[:3], memory>>20, time.Since(begin).Round(time.Millisecond))
		require.Positive(t, memory)
		require.Less(t, memory, int64(mostMemory))
	}
	run(dir, job("1", "artifacts-uploader", "--path", "gibibyte", "--compression-level", "fastest")...)
	run(dir, job("2", "artifacts-uploader", "--path", "large")...)
	run(other, job("2", "artifacts-downloader", "--retry", "0")...)
	info, err := os.Stat(filepath.Join(other, "large"))
	require.NoError(t, err)
	require.Equal(t, size, info.Size())
	run(dir, job("3", "artifacts-uploader", "--path", "large", "--artifact-format", "raw")...) // all bytes over the wire
	require.Equal(t, size, server.Uploads()[2].Size)
	for _, format := range []string{"tarzstd", "zipzstd"} {
		cache := filepath.Join(t.TempDir(), "cache.zip")
		run(dir, "cache-archiver", "--compression-format", format, "--file", cache, "--path", "large",
			"--compression-level", "slowest")
		run(other, "cache-extractor", "--file", cache)
	}
}

// A signal ends an upload with 128 and its number, and says so.
func TestASignalEndsAnUpload(t *testing.T) {
	server := artifactstest.New(t)
	arrived := make(chan struct{})
	release := make(chan struct{})
	server.Answer = func(w http.ResponseWriter, r *http.Request, _ int) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-release
		return true
	}
	defer close(release)
	dir := t.TempDir()
	write(t, dir, "a", "A")
	program, err := runnertest.Program()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, "artifacts-uploader", "--url", server.URL, "--id", "1", "--path", "a")
	var out strings.Builder
	cmd.Dir, cmd.Stderr = dir, &out
	cmd.Env = []string{"CI_JOB_TOKEN=" + artifactstest.Token}
	require.NoError(t, cmd.Start())
	<-arrived
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Error(t, cmd.Wait())
	require.Equal(t, 128+15, cmd.ProcessState.ExitCode())
	require.Contains(t, out.String(), "FATAL: signal: terminated")
}
