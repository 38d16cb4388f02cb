package fetchtest

import (
	"bytes"
	"compress/gzip"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"

	"github.com/stretchr/testify/require"
)

// GitServer serves the repositories below a directory over HTTP.
type GitServer struct {
	*httptest.Server
	// Host is its host and port.
	Host string
	// User and Password are required of clients if they are not empty. Set them before the first request.
	User, Password string
	// Old makes the server speak the oldest protocol: a client can then only fetch commits to which refs lead.
	Old bool
	// Before is called before each request, and answers it if it returns true. May be nil.
	Before func(w http.ResponseWriter, r *http.Request) bool

	fetches, questions atomic.Int64
}

// ServeGit serves the repositories below root until the test ends.
func ServeGit(t TB, root string) *GitServer {
	t.Helper()
	git, err := exec.LookPath("git")
	require.NoError(t, err)
	s := &GitServer{}
	s.Server = httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, git, root) }),
	)
	s.Host = strings.TrimPrefix(s.URL, "http://")
	t.Cleanup(s.Close)
	return s
}

func (s *GitServer) serve(w http.ResponseWriter, r *http.Request, git, root string) {
	if s.Before != nil && s.Before(w, r) {
		return
	}
	if user, password, _ := r.BasicAuth(); s.Password != "" && (user != s.User || password != s.Password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	env := []string{
		"GIT_PROJECT_ROOT=" + root,
		"GIT_HTTP_EXPORT_ALL=1",
		"PATH=" + os.Getenv("PATH"),
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
	}
	if !s.Old {
		env = append(env, "GIT_PROTOCOL="+r.Header.Get("Git-Protocol"))
	}
	r.Header.Del("Git-Protocol")
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		s.count(body, r.Header.Get("Content-Encoding") == "gzip")
	}
	(&cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Env: env,
		Stderr: io.Discard, Logger: log.New(io.Discard, "", 0),
	}).ServeHTTP(w, r)
}

func (s *GitServer) count(body []byte, zipped bool) {
	if zipped {
		if z, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, _ = io.ReadAll(z)
		}
	}
	if bytes.Contains(body, []byte("command=ls-refs")) {
		s.questions.Add(1)
	} else {
		s.fetches.Add(1)
	}
}

// Fetches returns how often clients fetched objects.
func (s *GitServer) Fetches() int { return int(s.fetches.Load()) }

// Questions returns how often clients asked for refs.
func (s *GitServer) Questions() int { return int(s.questions.Load()) }
