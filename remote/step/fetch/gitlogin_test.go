package fetch

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// hide makes h answer requests without the login as if the repository were not there.
func (h *gitHost) hide(status int) Login {
	h.Before = func(w http.ResponseWriter, r *http.Request) bool {
		if name, password, _ := r.BasicAuth(); name == user && password == secret {
			return false
		}
		http.Error(w, "there is nothing here", status)
		return true
	}
	return loginAt(h.URL, user, secret)
}

// git presents a login only to a server that answers 401. Some servers answer otherwise, so that nobody learns which
// repositories they have.
//
//stepmux:faults fetch | A private repository is not fetched from a server that hides it by 403 or 404: git sends the
//stepmux:more login only after a 401
//stepmux:with remote/step/fetch.TestLoginProxyServesItsGitAlone
//stepmux:with remote/step/fetch.TestServerThatFailsAfterTheLoginIsToldByItsName
func TestPrivateRepositoryIsFetchedFromAServerThatHidesIt(t *testing.T) {
	for name, old := range map[string]bool{"newest protocol": false, "oldest protocol": true} {
		for _, status := range []int{http.StatusForbidden, http.StatusNotFound} {
			t.Run(name+" "+http.StatusText(status), func(t *testing.T) {
				h := newGitHost(t)
				h.Old = old
				commit := h.echo("c/private")
				login := h.hide(status)
				s := newStore(t)
				require.Equal(t, commit, get(t, s, h.URL+"/c/private@v1", login).Commit)
				require.True(t, get(t, s, h.URL+"/c/private@"+commit, login).Cached)
				require.Equal(t, commit, get(t, newStore(t), h.URL+"/c/private@"+commit[:8], login).Commit)
				require.Contains(t, refused(t, s, h.URL+"/c/private@v1"), "(HTTP status")
				require.Contains(t, refused(t, s, h.URL+"/c/private@v1", loginAt(h.URL, user, "another")), "(HTTP status")
				requireNoCredentials(t, s)
			})
		}
	}
}

func TestServerThatFailsAfterTheLoginIsToldByItsName(t *testing.T) {
	for want, answer := range map[string]http.HandlerFunc{
		"the server refuses the credentials (HTTP status 403)": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
		},
		"the server refuses the credentials (HTTP status 401)": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
		"git ls-remote: unable to access 'http://HOST/c/private/': The requested URL returned error: 500": func(
			w http.ResponseWriter, _ *http.Request,
		) {
			w.WriteHeader(http.StatusInternalServerError)
		},
		"EOF": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(want, func(t *testing.T) {
			h := newGitHost(t)
			h.echo("c/private")
			login := h.private()
			var questions atomic.Int64 // the client may ask again, beside itself
			h.Before = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Authorization") == "" {
					return false
				}
				if questions.Add(1) == 1 { // is there a repository?
					return false
				}
				answer(w, r)
				return true
			}
			require.Equal(t, strings.Replace(want, "HOST", h.Host, 1), refused(t, newStore(t), h.URL+"/c/private@v1", login))
		})
	}
}

// Other users of the machine can connect to the server that git logs in by.
func TestLoginProxyServesItsGitAlone(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/p r")
	login := h.hide(http.StatusNotFound)
	repo := &repository{url: h.URL + "/c/p%20r", login: &login}
	p, err := newLoginProxy(t.Context(), repo, http.DefaultTransport)
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	ask := func(path, password string) int {
		t.Helper()
		u, err := url.Parse(p.origin + path)
		require.NoError(t, err)
		u.User = url.UserPassword("any", password)
		resp, err := http.Get(u.String())
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	const refs = "/c/p%20r/info/refs?service=git-upload-pack"
	require.Equal(t, http.StatusOK, ask(refs, p.password))
	for _, password := range []string{"", "another", secret} {
		require.Equal(t, http.StatusUnauthorized, ask(refs, password))
	}
	for _, path := range []string{"/", "/c/p%20r", "/c/other/info/refs", "/c/p%20r/info/refs/../../HEAD"} {
		require.Equal(t, http.StatusNotFound, ask(path, p.password), path)
	}
	require.NoError(t, p.cause())
	p.close()
	_, err = net.Dial("tcp", strings.TrimPrefix(p.origin, "http://"))
	require.Error(t, err)
}

func TestPrivateRepositoryIsFetchedByTLS(t *testing.T) {
	h := newGitHost(t)
	commit := h.echo("c/private")
	login := h.private()
	safe := httptest.NewUnstartedServer(h.Config.Handler)
	safe.EnableHTTP2 = true
	safe.StartTLS()
	t.Cleanup(safe.Close)
	login.Server = safe.URL
	s := newStore(t)
	s.client.Transport = safe.Client().Transport
	require.Equal(t, commit, get(t, s, safe.URL+"/c/private@v1", login).Commit)
	require.Equal(t, 1, h.Fetches())
}

func TestProxyOfTheEnvironmentIsNotAskedForTheLoginProxy(t *testing.T) {
	h := newGitHost(t)
	commit := h.echo("c/private")
	login := h.private()
	// net/http reads the variables once: this one is for git, and not for the tests that follow.
	_, err := http.ProxyFromEnvironment(httptest.NewRequest(http.MethodGet, "/", nil))
	require.NoError(t, err)
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	require.Equal(t, commit, get(t, newStore(t), h.URL+"/c/private@v1", login).Commit)
}
