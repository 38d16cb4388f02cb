package fetch

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
)

// Symptom: a step from a server that could not be reached, or that failed, was the script's failure, with exit code 1.
// A reference that is wrong is the user's mistake.
//
//stepmux:faults users | A server that cannot be reached or fails, a full disk or a missing git counts as a failure of
//stepmux:more the script
//stepmux:with remote/step/fetch.TestGitThatTheServerFailsIsAFaultOfTheSystem
//stepmux:with remote/step/fetch.TestAMachineThatCannotFetchIsAFaultOfTheSystem
//stepmux:with instance.TestAStepThatCannotBeFetchedIsTheSystemsFailureAndAWrongReferenceIsNot
//stepmux:with remote/step/engine.TestABuiltInStepThatTheSystemFailsIsNoFailureOfTheScript
//stepmux:with remote/step/engine.TestABuiltInStepThatFindsAFullDiskIsNoFailureOfTheScript
//stepmux:with remote/step/engine.TestAScriptCannotSayThatTheSystemIsAtFault
//stepmux:with remote/step/action.TestAMachineWithoutTheProgramOfAnActionIsAFaultOfTheSystem
func TestAFetchThatTheReferenceDoesNotFailIsAFaultOfTheSystem(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	secure := httptest.NewUnstartedServer(nil)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	status := func(code int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
		t.Cleanup(s.Close)
		return s.URL
	}
	torn := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "PK")
	}))
	t.Cleanup(torn.Close)
	hangup := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(hangup.Close)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html>hello</html>")
	}))
	t.Cleanup(page.Close)
	all := map[string]func(server string) *pb.Reference{
		"git": func(server string) *pb.Reference {
			return &pb.Reference{Protocol: pb.Reference_git, Url: server + "/c/echo", Rev: "v1"}
		},
		"git, whole address": func(server string) *pb.Reference {
			return &pb.Reference{Protocol: pb.Reference_git, Url: server + "/c/echo/x", Rev: "v1", Open: true}
		},
		"zip": func(server string) *pb.Reference {
			return &pb.Reference{Protocol: pb.Reference_zip, Url: server + "/s.zip"}
		},
		"oci": func(server string) *pb.Reference {
			_, host, _ := strings.Cut(server, "//")
			return &pb.Reference{Protocol: pb.Reference_oci, Registry: host, Repository: "g/echo", Tag: "1"}
		},
	}
	for name, c := range map[string]struct {
		server string
		system bool
		only   string // the only source
		never  string // a source whose client tries again for seconds, or by HTTP
	}{
		"does not resolve":     {server: "http://stepmux.invalid", system: true},
		"refuses":              {server: closed.URL, system: true},
		"unknown certificate":  {server: secure.URL, system: true, never: "oci"},
		"hangs up":             {server: hangup.URL, system: true, never: "oci"},
		"500":                  {server: status(500), system: true},
		"501":                  {server: status(501), system: true},
		"504":                  {server: status(504), system: true},
		"408":                  {server: status(408), system: true},
		"torn":                 {server: torn.URL, system: true, only: "zip"},
		"401":                  {server: status(401)},
		"403":                  {server: status(403)},
		"404":                  {server: status(404)},
		"410":                  {server: status(410)},
		"a page":               {server: page.URL},
		"no such port":         {server: "http://127.0.0.1:99999"},
		"metadata of a cloud":  {server: "http://169.254.169.254"},
		"not a name of a host": {server: "http://a b.example", only: "zip"},
	} {
		for source, ref := range all {
			if c.only != "" && source != c.only || source == c.never {
				continue
			}
			t.Run(name+", "+source, func(t *testing.T) {
				t.Parallel()
				requireFault(t, newStore(t), ref(c.server), c.system)
			})
		}
	}
}

// requireFault requires that a fetch fails, and by whose fault.
func requireFault(t *testing.T, s *Store, ref *pb.Reference, system bool) {
	t.Helper()
	_, err := s.Fetch(t.Context(), ref, Credentials{})
	require.Error(t, err)
	_, is := errors.AsType[*component.SystemError](err)
	require.Equal(t, system, is, "%v", err)

	// The other process says the same.
	text, err := proto.Marshal(ref)
	require.NoError(t, err)
	request, err := json.Marshal(component.Request{Reference: text, Dir: s.cfg.Dir})
	require.NoError(t, err)
	in, to, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer to.Close()
	_, err = to.Write(append(request, '\n'))
	require.NoError(t, err)
	var answer strings.Builder
	require.NoError(t, Answer(t.Context(), in, &answer))
	require.Equal(t, system, strings.Contains(answer.String(), `"system":true`), answer.String())
}

// The server of a repository fails after its first answer, when git itself talks to it.
func TestGitThatTheServerFailsIsAFaultOfTheSystem(t *testing.T) {
	hijack := func(w http.ResponseWriter, begin string) {
		nc, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(nc, begin)
			_ = nc.Close()
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		system bool
	}{
		"500":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, true},
		"503":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, true},
		"429":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, true},
		"hangs up": {func(w http.ResponseWriter, _ *http.Request) { hijack(w, "") }, true},
		"breaks off": {func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-result\r\nContent-Length: 100\r\n\r\n0012")
		}, true},
		"403": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, false},
		"404": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, false},
	} {
		for _, login := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := newGitHost(t)
				h.echo("c/echo")
				var with Credentials
				if login {
					with.Logins = []Login{h.private()}
				}
				h.Before = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method == http.MethodPost {
						c.answer(w, r)
					}
					return r.Method == http.MethodPost
				}
				_, err := newStore(t).Fetch(t.Context(), reference(t, h.URL+"/c/echo@v1"), with)
				require.Error(t, err)
				_, is := errors.AsType[*component.SystemError](err)
				require.Equal(t, c.system, is, "%v", err)
			})
		}
	}
}

// What is not in a repository that answers, or not what was asked for, is the user's mistake.
func TestAReferenceThatIsWrongIsNoFaultOfTheSystem(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	s := newStore(t)
	for _, ref := range []string{
		h.URL + "/c/echo@none", h.URL + "/c/echo@" + strings.Repeat("0", 39) + "1", h.URL + "/c/echo@0000000000",
		"zip+" + filepath.Join(t.TempDir(), "none.zip"), "zip+" + t.TempDir(),
		zipOf(t, "../a", "x"),
	} {
		_, err := s.Fetch(t.Context(), reference(t, ref), Credentials{})
		require.Error(t, err)
		_, is := errors.AsType[*component.SystemError](err)
		require.False(t, is, "%s: %v", ref, err)
	}
}

func TestAMachineThatCannotFetchIsAFaultOfTheSystem(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	ref := reference(t, h.URL+"/c/echo@v1")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, change := range map[string]func(*Config){
		"the cache is a file":       func(c *Config) { c.Dir = file },
		"the cache is below a file": func(c *Config) { c.Dir = filepath.Join(file, "cache") },
		"the fetch takes too long":  func(c *Config) { c.Timeout = time.Nanosecond },
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Config{Dir: filepath.Join(t.TempDir(), "cache")})
			require.NoError(t, err)
			change(&s.cfg)
			_, err = s.Fetch(t.Context(), ref, Credentials{})
			_, is := errors.AsType[*component.SystemError](err)
			require.True(t, is, "%v", err)
		})
	}
	t.Run("git is missing", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := newStore(t).Fetch(t.Context(), ref, Credentials{})
		require.ErrorContains(t, err, "git is not installed")
		_, is := errors.AsType[*component.SystemError](err)
		require.True(t, is, "%v", err)
	})
}

func TestGitThatIsKilledOrWithoutSpaceIsAFault(t *testing.T) {
	killed := exec.CommandContext(t.Context(), "sh", "-c", "kill -9 $$").Run()
	exited := exec.CommandContext(t.Context(), "sh", "-c", "exit 128").Run()
	for stderr, want := range map[string]bool{
		"fatal: write error: No space left on device\n":                                                 true,
		"error: RPC failed; curl 56 Recv failure: Connection reset by peer\n":                           true,
		"fatal: the remote end hung up unexpectedly\n":                                                  true,
		"fatal: Out of memory, malloc failed (tried to allocate 100 bytes)\n":                           true,
		"fatal: unable to access 'http://h/': Could not resolve host: h\n":                              true,
		"fatal: unable to access 'http://h/': The requested URL returned error: 502\n":                  true,
		"error: RPC failed; HTTP 403 curl 22 The requested URL returned error: 403\nfatal: early EOF\n": false,
		"fatal: couldn't find remote ref refs/heads/no\n":                                               false,
		"fatal: remote error: upload-pack: not our ref 01\n":                                            false,
		"error: object 01: treeNotSorted: not properly sorted\n":                                        false,
		"/job/.git: No space left on device\n":                                                          true,
		"remote: /.git: No space left on device\n":                                                      false,
		"remote: fatal: No space left on device\n":                                                      false,
	} {
		is, server := (&gitError{"fetch", stderr, exited}).isFault()
		require.Equal(t, want, is, stderr)
		require.False(t, server && strings.Contains(stderr, "No space"), "%s: the disk is this machine's", stderr)
	}
	is, server := (&gitError{"fetch", "", killed}).isFault()
	require.True(t, is)
	require.False(t, server)
	is, _ = (&gitError{"fetch", "", exited}).isFault()
	require.False(t, is)
}
