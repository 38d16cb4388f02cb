package fetch

import (
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/component"
)

const user = "gitlab-ci-token"

// Tests look for it in all processes and in the files that these have open, so no other process has it: it is in no
// file of the source, which a linter or a compiler reads at the same time.
var secret = rand.Text()

// private makes h require credentials.
func (h *gitHost) private() Login {
	h.User, h.Password = user, secret
	return loginAt(h.URL, user, secret)
}

//stepmux:faults fetch | The cache gives private components to jobs without credentials for them, and holds tokens
//stepmux:with remote/step/fetch.TestCredentialsAreOnNoFileWhileTheyAreUsed
func TestPrivateRepositoryNeedsCredentialsThatItsServerStillAccepts(t *testing.T) {
	h := newGitHost(t)
	commit := h.echo("c/private")
	login := h.private()
	s := newStore(t)
	ref, pinned := h.URL+"/c/private@v1", h.URL+"/c/private@"+commit
	require.Equal(t, "the server wants credentials (HTTP status 401), or does not have it; check the address",
		refused(t, s, ref))
	for range 2 {
		require.Equal(t, commit, get(t, s, ref, login).Commit)
		get(t, s, pinned, login)
	}
	require.Equal(t, 1, h.Fetches())
	get(t, s, strings.Replace(ref, "//", "//"+user+":"+secret+"@", 1)) // in the reference

	for _, ref := range []string{ref, pinned} { // although it is in the cache
		require.Contains(t, refused(t, s, ref), "the server wants credentials")
		require.Equal(t, "the server refuses the credentials (HTTP status 401)",
			refused(t, s, ref, loginAt(h.URL, user, "another")))
		require.Contains(t, refused(t, s, ref, loginAt("http://other.example", user, secret)), "the server wants credentials")
	}
	h.Password = "changed"
	require.NotContains(t, refused(t, s, pinned, login), secret)
	h.Close()
	require.Contains(t, refused(t, s, pinned, login), "connection refused")
	requireNoCredentials(t, s)
}

// requireNoCredentials requires that no file of the cache has the secret in it, in any form.
func requireNoCredentials(t *testing.T, s *Store) {
	t.Helper()
	header := basicAuth(new(loginAt("", user, secret)))
	for _, form := range []string{secret, header[len("Basic "):], url.QueryEscape(secret)} {
		require.False(t, contains(t, s.cfg.Dir, form))
	}
}

func TestCredentialsAreOnNoFileWhileTheyAreUsed(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/private")
	login := h.private()
	s := newStore(t)
	h.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost { // git is at work
			assert.False(t, contains(t, s.cfg.Dir, secret))
		}
		return false
	}
	get(t, s, h.URL+"/c/private@v1", login)
}

func TestCredentialsAreNotPresentedUnlessTheServerAsksForThem(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/public")
	h.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		assert.Empty(t, r.Header.Get("Authorization"))
		return false
	}
	get(t, newStore(t), h.URL+"/c/public@v1", loginAt(h.URL, user, secret))
}

func TestCredentialsDoNotFollowARedirect(t *testing.T) {
	other := newGitHost(t)
	other.echo("c/private")
	other.private()
	other.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		assert.Empty(t, r.Header.Get("Authorization"))
		return false
	}
	h := newGitHost(t)
	login := h.private()
	h.Before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "" {
			return false
		}
		http.Redirect(w, r, other.URL+r.URL.String(), http.StatusFound)
		return true
	}
	require.Contains(t, refused(t, newStore(t), h.URL+"/c/private@v1", login), "HTTP status 401")
}

func TestRedirectIsFollowedWithinTheServer(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo.git")
	h.Before = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, ".git/") {
			return false
		}
		http.Redirect(w, r, strings.Replace(r.URL.String(), "/c/echo/", "/c/echo.git/", 1), http.StatusMovedPermanently)
		return true
	}
	login := h.private()
	require.Equal(t, h.URL+"/c/echo", get(t, newStore(t), h.URL+"/c/echo@v1", login).Location)
}

func TestRedirectToLessSafeIsNotFollowed(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	safe := httptest.NewTLSServer(http.RedirectHandler(h.URL+"/c/echo/info/refs?service=git-upload-pack",
		http.StatusFound))
	t.Cleanup(safe.Close)
	s := newStore(t)
	s.client.Transport = safe.Client().Transport
	require.Equal(t, "the server redirects from https to http, which is less safe", refused(t, s, safe.URL+"/c/echo@v1"))
}

func TestMetadataOfACloudIsNoPlaceOfSteps(t *testing.T) {
	s := newStore(t)
	for _, ref := range []string{
		"zip+http://169.254.169.254/latest/meta-data", "http://169.254.169.254/a@v1",
		"zip+http://[::ffff:a9fe:a9fe]/x",
	} {
		require.Contains(t, refused(t, s, ref), "cloud's metadata")
	}
}

func TestNameOfAStepGoesOnWhereItsRepositoryEnds(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("group/components")
	r.Git("tag", "v1", r.Commit("main", fetchtest.Texts(map[string]string{
		"steps/bash/script.yml": stepText, "steps/sast/step.yml": stepText, "steps/dast/java.yml": stepText,
	})))
	var mu sync.Mutex
	var asked []string
	h.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, strings.TrimSuffix(r.URL.Path, "/info/refs"))
		return false
	}
	questions := func() []string { // since the last call
		mu.Lock()
		defer mu.Unlock()
		all := asked
		asked = nil
		return all
	}
	s := newStore(t)
	open := h.URL + "/group/components/bash/script"
	c := get(t, s, open+"@v1")
	require.Equal(t, c.Root+"/steps/bash", c.Dir)
	require.Equal(t, "script.yml", c.File)
	require.Equal(t, h.URL+"/group/components", c.Location)
	require.Equal(t, []string{"/group/components/bash/script", "/group/components"}, questions()[:2])
	get(t, s, open+"@v1")
	require.Equal(t, "/group/components", questions()[0], "where it ends is known by now")
	get(t, s, open+"@"+c.Commit)
	require.Empty(t, questions())

	c = get(t, s, h.URL+"/group/components/sast@v1")
	require.Equal(t, c.Root+"/steps/sast", c.Dir)
	require.Empty(t, c.File)
	require.Contains(t, refused(t, s, h.URL+"/no/such/thing@v1"), "neither the address nor a beginning of "+
		"it is a repository")
}

func TestComponentHasOtherStepsOfItsVersion(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	c := get(t, newStore(t), h.URL+"/c/echo@v1")
	for text, dir := range map[string]string{
		"/c/echo@v1": "steps", "/c/echo/-/sub@v1": "steps/sub", "/c/echo/other@v1": "steps/other",
		"/c/echo@v2": "", "/c/echo2@v1": "", "/c/echo2/x@v1": "",
	} {
		same, ok := c.For(reference(t, h.URL+text))
		require.Equal(t, dir != "", ok, text)
		if ok {
			require.Equal(t, c.Root+"/"+dir, same.Dir)
		}
	}
	_, ok := c.For(reference(t, "zip+"+h.URL+"/c/echo"))
	require.False(t, ok)
}

func TestCredentialsAreThoseOfTheVariables(t *testing.T) {
	vars := map[string]string{
		"CI_JOB_TOKEN": "t", "CI_SERVER_URL": "https://Git.example.com:443/sub", "CI_REGISTRY": "registry.example.com",
		"DOCKER_AUTH_CONFIG": `{"auths": {"https://r.example.com/v1/": {"auth": "dTpwOnc="}, "b.example.com": ` +
			`{"username": "x", "password": ` +
			`"y"}, "bad": {"auth": "%"}}}`,
	}
	creds := func() Credentials { return component.FromVariables(func(name string) string { return vars[name] }) }
	require.Equal(t, []Login{
		{Server: "b.example.com", User: "x", Password: "y"},
		{Server: "r.example.com", User: "u", Password: "p:w"},
		{Server: "https://git.example.com", User: "gitlab-ci-token", Password: "t"},
		{Server: "registry.example.com", User: "gitlab-ci-token", Password: "t"},
	}, creds().Logins)
	vars = map[string]string{
		"CI_JOB_TOKEN": "t", "CI_SERVER_HOST": "h", "CI_SERVER_PROTOCOL": "http",
		"CI_SERVER_PORT": "80", "DOCKER_AUTH_CONFIG": "none",
	}
	require.Equal(t, []Login{{Server: "http://h", User: "gitlab-ci-token", Password: "t"}}, creds().Logins)
	vars = map[string]string{"CI_JOB_TOKEN": "t"}
	require.Empty(t, creds().Logins, "there is nowhere to present it")
	vars = map[string]string{"CI_REGISTRY": "r", "CI_REGISTRY_USER": "u", "CI_REGISTRY_PASSWORD": "p"}
	require.Equal(t, []Login{{Server: "r", User: "u", Password: "p"}}, creds().Logins)

	c := Credentials{Logins: []Login{{Server: "https://a.example", User: "u", Password: "p"}}}
	for address, want := range map[string]bool{
		"https://a.example/x": true, "https://A.example:443/x": true, "http://a.example/x": false,
		"https://a.example:8443/x": false, "https://b.a.example/x": false, "https://a.example.evil/x": false,
	} {
		u, err := url.Parse(address)
		require.NoError(t, err)
		require.Equal(t, want, c.For(u) != nil, address)
	}
}
