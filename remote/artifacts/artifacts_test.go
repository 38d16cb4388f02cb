package artifacts

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/artifactstest"
	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/transfer"
)

// rig is a project, a server and the log of the commands.
type rig struct {
	*artifactstest.Server
	t      *testing.T
	dir    string
	log    bytes.Buffer
	client *transfer.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Server: artifactstest.New(t), t: t, dir: t.TempDir()}
	client, err := transfer.New(transfer.Config{
		Retries: 5, RetryTime: time.Millisecond, Log: transfer.Log{To: &r.log},
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r.client = client
	r.write("dist/a.txt", "A")
	r.write("dist/big", strings.Repeat("0123456789abcdef", 1<<16))
	return r
}

func (r *rig) write(name, content string) {
	r.t.Helper()
	at := filepath.Join(r.dir, name)
	require.NoError(r.t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(r.t, os.WriteFile(at, []byte(content), 0o644))
}

func (r *rig) job() Job { return Job{Server: r.URL, ID: 42, Token: artifactstest.Token} }

func (r *rig) upload(change func(*UploadConfig)) error {
	log := transfer.Log{To: &r.log}
	cfg := UploadConfig{
		Job: r.job(), Name: "artifacts", Level: "default", Log: log,
		Files: archive.Selection{Dir: r.dir, Paths: []string{"dist"}, Info: log.Info, Warn: log.Warn},
	}
	if change != nil {
		change(&cfg)
	}
	return Upload(r.t.Context(), r.client, cfg)
}

func (r *rig) download(change func(*DownloadConfig)) (string, error) {
	dir := r.t.TempDir()
	cfg := DownloadConfig{Job: r.job(), Dir: dir, StagingDir: r.t.TempDir(), Log: transfer.Log{To: &r.log}}
	if change != nil {
		change(&cfg)
	}
	err := Download(r.t.Context(), r.client, cfg)
	left, readErr := os.ReadDir(cfg.StagingDir)
	require.NoError(r.t, readErr)
	require.Empty(r.t, left)
	return cfg.Dir, err
}

// answers makes the server answer the first requests with these codes.
func (r *rig) answers(header http.Header, codes ...int) {
	r.Answer = func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n >= len(codes) || codes[n] == 0 {
			return false
		}
		for name, values := range header {
			w.Header()[name] = values
		}
		artifactstest.Refuse(w, codes[n], "said the server")
		return true
	}
}

func TestArtifactsArriveWithIdenticalBytes(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.upload(func(cfg *UploadConfig) {
		cfg.Name, cfg.ExpireIn, cfg.Type, cfg.Format = "sub/my name", "1 week", "archive", archive.Zip
	}))
	up := r.Uploads()[0]
	require.Equal(t, "42", up.Job)
	require.Equal(t, "my name.zip", up.Filename)
	require.Equal(t, "artifact_format=zip&artifact_type=archive&expire_in=1+week", up.Query.Encode())
	require.Contains(t, r.log.String(), "dist: found 3 matching files and directories\n"+
		"Uploading artifacts as \"archive\" to coordinator... 201 Created\n")
	dir, err := r.download(nil)
	require.NoError(t, err)
	for _, name := range []string{"dist/a.txt", "dist/big"} {
		want, err := os.ReadFile(filepath.Join(r.dir, name))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.NotContains(t, r.log.String(), artifactstest.Token)
}

func TestReportsAreGzipOrRaw(t *testing.T) {
	r := newRig(t)
	only := func(format archive.Format) func(*UploadConfig) {
		return func(cfg *UploadConfig) {
			cfg.Files.Paths, cfg.Format, cfg.Type, cfg.Name = []string{"dist/a.txt"}, format, "junit", ""
		}
	}
	require.NoError(t, r.upload(only(archive.Gzip)))
	require.NoError(t, r.upload(only(archive.Raw)))
	require.ErrorContains(t, r.upload(only(archive.TarZstd)), `"tarzstd" is not one of zip, gzip and raw`)
	up := r.Uploads()
	require.Len(t, up, 2)
	require.Equal(t, "default.gz", up[0].Filename)
	z, err := gzip.NewReader(bytes.NewReader(up[0].Data))
	require.NoError(t, err)
	data, err := io.ReadAll(z)
	require.NoError(t, err)
	require.Equal(t, "A", string(data))
	require.Equal(t, "default", up[1].Filename)
	require.Equal(t, "A", string(up[1].Data))
	require.Equal(t, "raw", up[1].Query.Get("artifact_format"))
}

func TestAnUploadIsRepeatedUntilTheServerIsThereAgain(t *testing.T) {
	r := newRig(t)
	r.answers(http.Header{"Retry-After": {"0"}}, 503, 502, 429, 503, 500)
	require.NoError(t, r.upload(nil))
	require.Len(t, r.Requests(), 6)
	require.Len(t, r.Uploads(), 1)
	require.Contains(t, r.log.String(), "answers 503 Service Unavailable: said the server; retry 1 of 5 in 0s\n")
	dir, err := r.download(nil)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "dist/big"))
}

func TestSomeRefusalsAreFinal(t *testing.T) {
	for code, want := range map[int]string{
		400: "400 Bad Request: said the server",
		401: "401 Unauthorized: said the server: the server does not accept the job's",
		403: "the server does not accept the job's token",
		404: "404 Not Found: said the server: the server has no such job, or its URL is wrong",
		413: "413 Request Entity Too Large: said the server: the artifacts are larger than the server's limit",
	} {
		r := newRig(t)
		r.answers(nil, code)
		err := r.upload(nil)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `upload artifacts as "archive"`)
		require.Len(t, r.Requests(), 1, "%d", code)
		_, err = func() (string, error) {
			r.Answer = func(w http.ResponseWriter, _ *http.Request, _ int) bool {
				artifactstest.Refuse(w, code, "said the server")
				return true
			}
			return r.download(nil)
		}()
		require.ErrorContains(t, err, "download artifacts of job 42")
		require.Len(t, r.Requests(), 2)
	}
	r := newRig(t)
	_, err := r.download(nil)
	require.ErrorContains(t, err, "the job has no artifacts there, or they have expired")
	r.answers(nil, 0, 503, 503, 503, 503, 503, 503, 503)
	require.ErrorContains(t, r.upload(nil), "(tried 6 times)")
	require.Len(t, r.Requests(), 7)
}

// GitLab refuses in the middle of an upload that becomes too large, and closes the connection.
//
//stepmux:faults artifacts | A server that refuses in the middle of an upload is not heard: the failed write hides its
//stepmux:more answer, and the upload is repeated
func TestARefusalInTheMiddleOfTheUploadIsNotRetried(t *testing.T) {
	r := newRig(t)
	r.write("dist/random", randomText(8<<20))
	r.Answer = func(w http.ResponseWriter, req *http.Request, _ int) bool {
		_, _ = io.CopyN(io.Discard, req.Body, 1<<20)
		artifactstest.Refuse(w, 413, "too large")
		return true
	}
	for i := range 10 {
		require.ErrorContains(t, r.upload(nil), "413")
		require.Len(t, r.Requests(), i+1, "%s", r.log.String())
	}
}

func randomText(n int) string {
	var b strings.Builder
	x := uint32(1)
	for b.Len() < n {
		x = x*1664525 + 1013904223
		b.WriteByte(byte(x >> 24))
	}
	return b.String()
}

//stepmux:faults artifacts | An upload that is redirected to another server takes the job's token there
//stepmux:with remote/transfer.TestRedirects
func TestRedirectsDoNotCarryTheTokenAway(t *testing.T) {
	r := newRig(t)
	other := artifactstest.New(t)
	redirect := func(to string) {
		r.Answer = func(w http.ResponseWriter, req *http.Request, _ int) bool {
			if req.URL.Path != "/api/v4/jobs/42/artifacts" {
				return false
			}
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusTemporaryRedirect)
			return true
		}
	}
	redirect(r.URL + "/api/v4/jobs/43/artifacts")
	require.NoError(t, r.upload(nil))
	require.Equal(t, "43", r.Uploads()[0].Job)

	redirect("ftp://gitlab.example.com/")
	err := r.upload(nil) // and it does not wait for a body that nobody reads
	require.ErrorContains(t, err, "the server redirects from http to ftp, which is less safe")

	redirect(other.URL + "/api/v4/jobs/42/artifacts")
	err = r.upload(nil)
	require.ErrorContains(t, err, "redirects to this server, which does not get the job's token; use its address")
	require.Len(t, other.Requests(), 1)
	require.Empty(t, other.Uploads())
	for name, values := range other.Requests()[0].Header {
		require.NotContains(t, strings.Join(values, " "), artifactstest.Token, name)
	}
}

func TestADirectDownloadComesFromTheObjectStoreOrElseFromTheServer(t *testing.T) {
	r, store := newRig(t), artifactstest.New(t)
	require.NoError(t, r.upload(nil))
	store.Put("a.zip", r.Uploads()[0].Data, nil)
	r.Answer = func(w http.ResponseWriter, req *http.Request, _ int) bool {
		if req.URL.Query().Get("direct_download") != "true" {
			return false
		}
		http.Redirect(w, req, store.Presigned("a.zip"), http.StatusFound)
		return true
	}
	direct := func(cfg *DownloadConfig) { cfg.Direct = true }
	dir, err := r.download(direct)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "dist/a.txt"))
	require.Len(t, store.Requests(), 1)
	require.Empty(t, store.Requests()[0].Header.Get("Job-Token"))

	store.Answer = func(w http.ResponseWriter, _ *http.Request, _ int) bool {
		http.Error(w, "no", http.StatusForbidden)
		return true
	}
	dir, err = r.download(direct)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "dist/a.txt"))
	require.Contains(t, r.log.String(), "direct download: "+store.URL+" answers 403 Forbidden; retry 1 of 5")
	require.NotContains(t, r.log.String(), "topsecret")
}

// Symptom: where GitLab stores artifacts behind a certificate of its own or without TLS, no artifacts arrived.
func TestADirectDownloadThatIsNotPossibleGoesByTheServer(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.upload(nil))
	store := httptest.NewUnstartedServer(http.NotFoundHandler())
	store.Config.ErrorLog = log.New(io.Discard, "", 0)
	store.StartTLS()
	defer store.Close()
	for to, want := range map[string]string{
		store.URL + "/a.zip?sig=topsecret": "failed to verify certificate",
		"ftp://store.example.com/a.zip":    "the server redirects from http to ftp, which is less safe",
	} {
		r.Answer = func(w http.ResponseWriter, req *http.Request, _ int) bool {
			if req.URL.Query().Get("direct_download") != "true" {
				return false
			}
			http.Redirect(w, req, to, http.StatusFound)
			return true
		}
		dir, err := r.download(func(cfg *DownloadConfig) { cfg.Direct = true })
		require.NoError(t, err)
		require.FileExists(t, filepath.Join(dir, "dist/a.txt"))
		require.Contains(t, r.log.String(), want)
		require.NotContains(t, r.log.String(), "topsecret")
	}
}

func TestADownloadThatBreaksOffIsRepeated(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.upload(nil))
	data := r.Uploads()[0].Data
	r.Answer = func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n > 2 {
			return false
		}
		w.Header().Set("Content-Length", "100000000")
		_, _ = w.Write(bytes.Repeat([]byte("x"), 100<<10+len(data))) // more than the next attempt
		return true
	}
	dir, err := r.download(nil)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "dist/a.txt"))
	require.Contains(t, r.log.String(), "unexpected EOF; retry 2 of 5")
}

func TestAPageOfHTMLIsNoSuccess(t *testing.T) {
	r := newRig(t)
	r.Answer = func(w http.ResponseWriter, req *http.Request, _ int) bool {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!DOCTYPE html><html>Sign in</html>")
		return true
	}
	require.ErrorContains(t, r.upload(nil), "answers 200 OK with a page of HTML (is the URL that of a GitLab server?)")
	require.Len(t, r.Requests(), 1)
	_, err := r.download(nil)
	require.ErrorContains(t, err, "download artifacts of job 42: the file is neither a zip archive")
}

func TestHostileArtifactsAreRefused(t *testing.T) {
	r := newRig(t)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create("../evil")
	require.NoError(t, err)
	_, err = io.WriteString(w, "x")
	require.NoError(t, err)
	require.NoError(t, z.Close())
	r.Answer = func(w http.ResponseWriter, _ *http.Request, _ int) bool {
		_, _ = w.Write(b.Bytes())
		return true
	}
	dir, err := r.download(nil)
	require.ErrorContains(t, err, `unpack "../evil": the entry's name has .. in it`)
	require.NoFileExists(t, filepath.Join(filepath.Dir(dir), "evil"))
}

func TestNothingToUploadIsSaid(t *testing.T) {
	r := newRig(t)
	err := r.upload(func(cfg *UploadConfig) { cfg.Files.Paths = []string{"missing", "../x", "/etc/passwd"} })
	require.ErrorIs(t, err, ErrNoFiles)
	require.Empty(t, r.Requests())
	require.Contains(t, r.log.String(), "WARNING: missing: no matching files")
	require.Contains(t, r.log.String(), "WARNING: /etc/passwd: the path is outside of the project's directory")
}

func TestAJobNeedsAServerATokenAndANumber(t *testing.T) {
	r := newRig(t)
	for want, job := range map[string]Job{
		"give --url and --token":               {Server: r.URL, ID: 1},
		"give --id, or CI_JOB_ID":              {Server: r.URL, Token: "t"},
		"the server's URL: the address is not": {Server: "gitlab", ID: 1, Token: "t"},
		"or CI_SERVER_URL and CI_JOB_TO":       {ID: 1, Token: "t"},
	} {
		require.ErrorContains(t, r.upload(func(cfg *UploadConfig) { cfg.Job = job }), want)
		_, err := r.download(func(cfg *DownloadConfig) { cfg.Job = job })
		require.ErrorContains(t, err, want)
	}
	below := r.job()
	below.Server += "/gitlab/"
	require.ErrorContains(t, r.upload(func(cfg *UploadConfig) { cfg.Job = below }), "404")
	require.Equal(t, "/gitlab/api/v4/jobs/42/artifacts", r.Requests()[0].Path)
}

func TestACancelledUploadEnds(t *testing.T) {
	r := newRig(t)
	why := errors.New("cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	release := make(chan struct{})
	blocked := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel(why)
		<-release
	}))
	defer blocked.Close()
	defer close(release)
	job := r.job()
	job.Server = blocked.URL
	nothing := func(string) {}
	err := Upload(ctx, r.client, UploadConfig{
		Job: job, Level: "fast", Log: transfer.Log{To: io.Discard},
		Files: archive.Selection{Dir: r.dir, Paths: []string{"dist"}, Info: nothing, Warn: nothing},
	})
	require.ErrorIs(t, err, why)
}

//stepmux:faults artifacts | The name of an artifact with `..` in it writes its statement outside of the project
func TestAStatementSaysHowTheFilesWereMade(t *testing.T) {
	for schema, predicate := range map[string]string{
		"v1": "https://slsa.dev/provenance/v1", "unknown": "https://slsa.dev/provenance/v1",
		"v0.2": "https://slsa.dev/provenance/v0.2",
	} {
		r := newRig(t)
		statement := &Statement{
			RunnerID: "7", RunnerName: "r", Executor: "instance", RepoURL: "https://gitlab.example.com/g/p",
			RepoDigest: "0123", JobName: "build", StartedAt: "2026-01-02T03:04:05Z", EndedAt: "2026-01-02T04:04:05+01:00",
			Parameters: []string{"CI", "SECRET"}, Schema: schema,
		}
		r.write("artifacts-statement.json", "of an earlier job")
		require.NoError(t, r.upload(func(cfg *UploadConfig) {
			cfg.Statement, cfg.Format, cfg.Name = statement, archive.Zip, "../../artifacts"
			cfg.Files.Paths = []string{"*"}
		}))
		data := r.Uploads()[0].Data
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		require.NoError(t, err)
		file, err := z.Open("artifacts-statement.json")
		require.NoError(t, err)
		var got struct {
			Type          string `json:"_type"`
			PredicateType string `json:"predicateType"`
			Subject       []struct {
				Name   string
				Digest map[string]string
			}
			Predicate json.RawMessage
		}
		require.NoError(t, json.NewDecoder(file).Decode(&got))
		require.Equal(t, "https://in-toto.io/Statement/v0.1", got.Type)
		require.Equal(t, predicate, got.PredicateType)
		require.Len(t, got.Subject, 2)
		require.Equal(t, "dist/a.txt", got.Subject[0].Name)
		require.Equal(t, "559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd", got.Subject[0].Digest["sha256"])
		for _, want := range []string{
			`"https://gitlab.example.com/g/p/-/runners/7"`, `"build"`, `"SECRET": ""`, `"instance"`, `"42"`,
			`"2026-01-02T03:04:05Z"`,
		} {
			require.Contains(t, string(got.Predicate), want, schema)
		}
		statement.EndedAt = "now"
		require.ErrorContains(t, r.upload(func(cfg *UploadConfig) { cfg.Statement = statement }), `the time "now"`)
		require.ErrorContains(t, r.upload(func(cfg *UploadConfig) {
			cfg.Statement, cfg.Format = statement, archive.Raw
		}), "only for the artifact format zip")
	}
}

// Symptom: a file that could not be read lost all artifacts, and the statement about the others.
func TestArtifactsWithAFileThatCannotBeReadAreUploaded(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can read all files")
	}
	r := newRig(t)
	r.write("dist/key", "k")
	require.NoError(t, os.Chmod(filepath.Join(r.dir, "dist/key"), 0))
	require.NoError(t, r.upload(func(cfg *UploadConfig) {
		cfg.Statement = &Statement{StartedAt: "2026-01-02T03:04:05Z", EndedAt: "2026-01-02T03:04:05Z"}
		cfg.Format = archive.Zip
	}))
	require.Equal(t, 1, strings.Count(r.log.String(), "WARNING: dist/key: left out: permission denied"))
	data := r.Uploads()[0].Data
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	require.Contains(t, names, "dist/a.txt")
	require.NotContains(t, names, "dist/key")
	text, err := fs.ReadFile(z, "artifacts-statement.json")
	require.NoError(t, err)
	require.Contains(t, string(text), "dist/a.txt")
	require.NotContains(t, string(text), "dist/key")
}
