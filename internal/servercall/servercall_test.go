package servercall

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerSaysHowLongToWait(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		want   time.Duration
		header http.Header
	}{
		{-1, http.Header{}},
		{7 * time.Second, http.Header{"Retry-After": {"7"}}},
		{0, http.Header{"Retry-After": {"0"}}},
		{-1, http.Header{"Retry-After": {"-7"}}},
		{-1, http.Header{"Retry-After": {"9999999999999"}}},
		{-1, http.Header{"Retry-After": {"Fri, 02 Jan 2026 03:04:00 GMT"}}},
		{10 * time.Second, http.Header{"Retry-After": {"7"}, "Ratelimit-Resettime": {"Fri, 02 Jan 2026 03:04:15 GMT"}}},
		{7 * time.Second, http.Header{"Retry-After": {"7"}, "Ratelimit-Resettime": {"Fri, 02 Jan 2026 03:04:00 GMT"}}},
		{9 * time.Second, http.Header{"Retry-After": {"9"}, "Ratelimit-Resettime": {"soon"}}},
	} {
		require.Equal(t, test.want, Wait(test.header, now), "%v", test.header)
	}
}

// A redirect is an answer: another host gets no token. An answer over the bound is an error.
func TestACallReadsTheWholeAnswer(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the redirect was followed")
	}))
	defer elsewhere.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/elsewhere":
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		case "/large":
			_, _ = w.Write(make([]byte, 1<<20+1))
		case "/header":
			w.Header().Set("X-Large", strings.Repeat("x", maxHeader))
		case "/broken":
			w.Header().Set("Content-Length", "9")
			_, _ = w.Write([]byte("1"))
		default:
			var body bytes.Buffer
			_, _ = body.ReadFrom(r.Body)
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte(r.Method + " " + r.Header.Get("Job-Token") + " " + body.String()))
		}
	}))
	defer s.Close()
	c := New(nil)
	defer c.Close()
	do := func(path string) (*Answer, error) {
		return c.Do(t.Context(), Request{
			Method: "PATCH", URL: s.URL + path, Header: http.Header{"Job-Token": {"token"}}, Body: []byte("text"),
			Max: 1 << 20,
		})
	}
	got, err := do("/")
	require.NoError(t, err)
	require.Equal(t, http.StatusTeapot, got.Status)
	require.Equal(t, "PATCH token text", string(got.Text))
	got, err = do("/elsewhere")
	require.NoError(t, err)
	require.Equal(t, http.StatusTemporaryRedirect, got.Status)
	for path, text := range map[string]string{
		"/large": "the answer is too large: more than 1 MiB", "/header": "header",
		"/broken": "read the answer: unexpected EOF",
	} {
		_, err = do(path)
		require.ErrorContains(t, err, text)
		require.NotContains(t, err.Error(), s.URL)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Do(ctx, Request{Method: "GET", URL: s.URL, Max: 1 << 20})
	require.ErrorIs(t, err, context.Canceled)
	_, err = c.Do(t.Context(), Request{Method: "GET", URL: "http://a b/?secret"})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
}

func TestFilesOfTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	security, err := Files{CA: file}.Config()
	require.NoError(t, err)
	c := New(&http.Transport{TLSClientConfig: security})
	defer c.Close()
	got, err := c.Do(t.Context(), Request{Method: "GET", URL: s.URL, Max: 1 << 20})
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, got.Status)

	_, err = Files{CA: file + "x"}.Config()
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Files{Cert: file}.Config()
	require.ErrorContains(t, err, "ca.pem")
	require.NoError(t, os.WriteFile(file, []byte("no"), 0o600))
	_, err = Files{CA: file}.Config()
	require.ErrorContains(t, err, "has no certificate in PEM form")
}

func TestRetryGivesUp(t *testing.T) {
	wrong := errors.New("away")
	tries := 0
	err := Retry{Times: 2, Check: func(error) (bool, time.Duration) { return true, 0 }}.Do(t.Context(), func(n int) error {
		require.Equal(t, tries, n)
		tries++
		return wrong
	})
	require.ErrorIs(t, err, wrong)
	require.EqualError(t, err, "away (tried 3 times)")
	gave, is := errors.AsType[*GaveUpError](err)
	require.True(t, is)
	require.Equal(t, 3, gave.Tries)
}

func TestMessageIsThatOfGitLab(t *testing.T) {
	for text, want := range map[string]string{
		`{"message":"403 Forbidden - Job is not processing on runner"}`: "403 Forbidden - Job is not processing on runner",
		`{"error":"token is missing"}`:                                  "token is missing",
		`{"message":{"base":["wrong"]},"error":"both"}`:                 "both",
		`<html>`: "", `[]`: "", `{}`: "", "": "",
	} {
		require.Equal(t, want, Message([]byte(text)), text)
	}
}
