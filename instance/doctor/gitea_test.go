package doctor_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/doctor"
	"github.com/stepmux/stepmux/instance/manager/giteadoor"
	"github.com/stepmux/stepmux/internal/testing/giteatest"
)

// serverConfig returns the configuration of a server, whose token file has a text.
func serverConfig(t *testing.T, url, token string) giteadoor.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token), 0o600))
	read := func() (string, error) {
		text, err := os.ReadFile(file)
		return strings.TrimSpace(string(text)), err
	}
	return giteadoor.Config{Name: "one", URL: url, Runner: "here", Token: read, TokenFile: file}
}

// statuses are the findings as CHECK STATUS.
func statuses(r doctor.Report) string {
	var all []string
	for _, f := range r.Findings {
		all = append(all, f.Check+" "+string(f.Status))
	}
	return strings.Join(all, ", ")
}

func TestAServerThatFits(t *testing.T) {
	fake := giteatest.NewFake(t)
	cfg := serverConfig(t, fake.URL, "word\n")
	r := doctor.ExamineGitea(t.Context(), cfg, []map[string]string{{"gpu": "true"}})
	require.Equal(t, "url ok, answer ok, version ok, actions ok, clock ok, token ok, labels ok", statuses(r))
	require.True(t, r.Usable)
	require.Equal(t, 0, fake.Calls("Register"), "nothing is left on the server")
	var text strings.Builder
	require.NoError(t, r.WriteText(&text))
	require.Contains(t, text.String(), "one ("+fake.URL+"): its jobs can be taken\n")
	require.Contains(t, text.String(), "jobs come here with gpu, gpu=true, linux, self-hosted, ubuntu-latest\n")
}

func TestFilesAndLabelsOfAServerThatDoNotFit(t *testing.T) {
	fake := giteatest.NewFake(t)
	cfg := serverConfig(t, fake.URL, "two words")
	cfg.Labels = []string{"ubuntu-22.04", "gpu", "big"}
	cfg.Secret = func() (string, error) { return "", os.ErrPermission }
	r := doctor.ExamineGitea(t.Context(), cfg, []map[string]string{{"gpu": "true"}})
	require.Equal(t, "url ok, answer ok, version ok, actions ok, clock ok, token fail, labels warn, webhook fail",
		statuses(r))
	require.Equal(t, "no VM has big", r.Findings[6].Detail)
	cfg = serverConfig(t, fake.URL+"/", "word")
	require.NoError(t, os.Chmod(cfg.TokenFile, 0o644))
	r = doctor.ExamineGitea(t.Context(), cfg, nil)
	require.Equal(t, "url ok, answer ok, version ok, actions ok, clock ok, token warn, labels skip", statuses(r))
	require.True(t, r.Usable)
	require.Equal(t, "chmod 600 "+cfg.TokenFile, r.Findings[5].Change)
}

func TestServersThatDoNotFit(t *testing.T) {
	serve := func(h http.HandlerFunc) *httptest.Server {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s
	}
	answer := func(status int, text string) *httptest.Server {
		return serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://other.example.com/")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		})
	}
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells each refusal
	secure.StartTLS()
	t.Cleanup(secure.Close)
	gone := serve(nil)
	gone.Close()
	old := serve(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"version": "1.18.5"}`)
			return
		}
		http.NotFound(w, r)
	})
	for _, c := range []struct{ url, statuses, says, change string }{
		{gone.URL, "url ok, answer fail, version skip, actions skip, clock skip", "refused", "check host and port"},
		{secure.URL, "url ok, answer fail, version skip, actions skip, clock skip", "unknown authority", "SSL_CERT_FILE"},
		{
			strings.Replace(secure.URL, "https", "http", 1),
			"url ok, answer fail, version skip, actions skip, clock skip", "wants TLS", "write https://",
		},
		{
			strings.Replace(gone.URL, "http://127.0.0.1", "https://nowhere.invalid", 1),
			"url ok, answer fail, version skip, actions skip, clock skip", "nowhere.invalid", "name servers",
		},
		{
			answer(301, "").URL, "url ok, answer fail, version skip, actions skip, clock skip", "other.example.com",
			"write the URL",
		},
		{answer(200, "<html>\x1b]0;x").URL, "url ok, answer warn, version skip, actions fail, clock ok", "html", "proxies"},
		{old.URL, "url ok, answer ok, version fail, actions fail, clock warn", "1.18.5 has no runners", "use Gitea"},
		{old.URL + "/api/v1", "url fail, answer skip, version skip, actions skip, clock skip", "API", "without /api"},
		{
			"http://ann:secret@gitea.invalid/", "url fail, answer skip, version skip, actions skip, clock skip", "more than",
			"remove",
		},
	} {
		r := doctor.ExamineGitea(t.Context(), serverConfig(t, c.url, "word"), nil)
		require.Equal(t, c.statuses+", token ok, labels skip", statuses(r), "%s: %+v", c.url, r.Findings)
		require.False(t, r.Usable)
		all := fmt.Sprintf("%+v", r.Findings)
		require.Contains(t, all, c.says)
		require.Contains(t, all, c.change)
		var text strings.Builder
		require.NoError(t, r.WriteText(&text))
		require.NotContains(t, text.String(), "\x1b")
		require.NotContains(t, text.String(), "secret@")
	}
}

func TestVersionsOfServers(t *testing.T) {
	for version, want := range map[string]doctor.Status{
		"1.26.0": doctor.OK, "1.27.0+dev-3": doctor.OK, "1.25.5": doctor.Warn, "1.18.0": doctor.Fail,
		"development":         doctor.OK,
		"14.0.2+gitea-1.22.0": doctor.Warn, "1.18.0+gitea-1.18.0": doctor.Fail,
		"2.0": doctor.OK,
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"version": %q}`, version)
		}))
		r := doctor.ExamineGitea(t.Context(), serverConfig(t, s.URL, "word"), nil)
		s.Close()
		require.Equal(t, want, r.Findings[2].Status, version)
	}
}
