package transfer

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func newClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.Log.To == nil {
		cfg.Log.To = io.Discard
	}
	c, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func serve(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(handle)
	t.Cleanup(s.Close)
	return s
}

func body(text string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

func TestRetryWaitsAsTheServerSaysOrLongerAndLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := newClient(t, Config{Retries: 5, RetryTime: time.Second, Log: Log{&log}})
		begin := time.Now()
		var at []time.Duration
		waits := []time.Duration{-1, -1, -1, 30 * time.Second, time.Hour}
		err := c.Retry(t.Context(), func(_ context.Context, n int) error {
			require.Equal(t, len(at), n)
			at = append(at, time.Since(begin))
			if n == len(waits) {
				return nil
			}
			return &StatusError{Code: 503, Origin: "https://gitlab.example.com", Wait: waits[n]}
		})
		require.NoError(t, err)
		require.Len(t, at, 6)
		for i, most := range []time.Duration{1, 2, 4, 30, 300} {
			wait := at[i+1] - at[i]
			require.LessOrEqual(t, wait, most*time.Second)
			require.GreaterOrEqual(t, wait, most*time.Second/2)
		}
		require.Contains(t, log.String(), "WARNING: https://gitlab.example.com answers 503 Service Unavailable; "+
			"retry 4 of 5 in 30s\n")
	})
}

func TestOnlyTemporaryErrorsAreRetried(t *testing.T) {
	c := newClient(t, Config{Retries: 2, RetryTime: 1})
	for code, tries := range map[int]int{
		400: 1, 401: 1, 403: 1, 404: 1, 408: 3, 413: 1, 429: 3, 500: 3, 501: 1, 502: 3, 503: 3, 504: 3, 505: 1, 511: 1,
		512: 3, 599: 3, 200: 1, 302: 1,
	} {
		n := 0
		err := c.Retry(t.Context(), func(context.Context, int) error {
			n++
			return fmt.Errorf("wrapped: %w", &StatusError{Code: code, Wait: -1})
		})
		require.Error(t, err)
		require.Equal(t, tries, n, "%d", code)
		require.Equal(t, code >= 500 || tries > 1, IsFault(err), "%d", code)
	}
	n := 0
	require.ErrorIs(t, c.Retry(t.Context(), func(context.Context, int) error {
		n++
		return Local(os.ErrPermission)
	}), os.ErrPermission)
	require.Equal(t, 1, n)
	n = 0
	err := c.Retry(t.Context(), func(context.Context, int) error {
		n++
		return io.ErrUnexpectedEOF
	})
	require.EqualError(t, err, "unexpected EOF (tried 3 times)")
	require.True(t, IsFault(err))
	require.False(t, IsFault(Local(errors.New("an unsafe redirect"))))
	require.True(t, IsFault(Local(&os.PathError{Op: "write", Path: "x", Err: unix.ENOSPC})))
	require.Equal(t, 3, n)
}

func TestRetryEndsWithItsContext(t *testing.T) {
	c := newClient(t, Config{Retries: 5, RetryTime: time.Hour})
	why := errors.New("cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := c.Retry(ctx, func(context.Context, int) error {
		cancel(why)
		return io.ErrUnexpectedEOF
	})
	require.ErrorIs(t, err, why)
}

// The server takes the connection, and nothing else happens.
//
//stepmux:faults artifacts | A server that stalls holds an upload or a download up without end
func TestAServerThatStallsIsGivenUp(t *testing.T) {
	const stall = 50 * time.Millisecond
	release := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow-body":
			_, _ = io.WriteString(w, "begin")
			_ = http.NewResponseController(w).Flush()
		case "/take-nothing":
			w.WriteHeader(http.StatusContinue) // and then it reads nothing
		case "/think":
			_, _ = io.Copy(io.Discard, r.Body)
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	c := newClient(t, Config{Stall: stall})

	resp, err := c.Do(t.Context(), Request{Method: http.MethodGet, URL: s.URL + "/slow-body", OK: []int{200}})
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.EqualError(t, err, "the server has sent nothing for 50ms")
	require.True(t, temporary(err))
	resp.Body.Close()

	err = send(t.Context(), c, Request{
		Method: http.MethodPost, URL: s.URL + "/take-nothing", OK: []int{201}, Length: -1,
		Body: func() (io.ReadCloser, error) { return io.NopCloser(endless{}), nil },
	})
	require.EqualError(t, err, "the server has taken nothing for 50ms")
	require.True(t, temporary(err))

	c = newClient(t, Config{HeaderTimeout: 200 * time.Millisecond})
	err = send(t.Context(), c, Request{
		Method: http.MethodPost, URL: s.URL + "/think", OK: []int{201}, Length: -1, Body: body("all"),
	})
	require.ErrorContains(t, err, "timeout awaiting response headers")
	require.True(t, temporary(err))

	bounded := newClient(t, Config{Timeout: 50 * time.Millisecond})
	err = bounded.Retry(t.Context(), func(ctx context.Context, _ int) error {
		return send(ctx, bounded, Request{Method: http.MethodGet, URL: s.URL + "/think", OK: []int{200}})
	})
	require.EqualError(t, err, "the attempt takes longer than --timeout, 50ms")
}

// send sends a request whose answer does not matter.
func send(ctx context.Context, c *Client, r Request) error {
	resp, err := c.Do(ctx, r)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestRedirects(t *testing.T) {
	type got struct {
		token, referer, body, path string
	}
	var here, there []got
	take := func(to *[]got) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			data, _ := io.ReadAll(r.Body)
			*to = append(*to, got{r.Header.Get("Job-Token"), r.Header.Get("Referer"), string(data), r.URL.String()})
			w.WriteHeader(http.StatusCreated)
		}
	}
	other := serve(t, take(&there))
	mux := http.NewServeMux()
	s := serve(t, mux.ServeHTTP)
	mux.HandleFunc("/end", take(&here))
	for path, to := range map[string]string{
		"/same": s.URL + "/end", "/other": other.URL + "/x?sig=1", "/round": s.URL + "/round",
		"/login": "http://user:password@" + strings.TrimPrefix(other.URL, "http://"), "/file": "file:///etc/passwd",
	} {
		mux.Handle(path, http.RedirectHandler(to, http.StatusTemporaryRedirect))
	}
	mux.Handle("/found", http.RedirectHandler(s.URL+"/end", http.StatusFound))
	c := newClient(t, Config{})
	post := func(path string) error {
		resp, err := c.Do(t.Context(), Request{
			Method: http.MethodPost, URL: s.URL + path + "?secret=query", Header: http.Header{"Job-Token": {"token"}},
			OK: []int{201}, Length: -1, Body: body("content"),
		})
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	require.NoError(t, post("/same"))
	require.Equal(t, "token", here[0].token)
	require.Equal(t, "content", here[0].body)
	require.NoError(t, post("/other"))
	require.Equal(t, []got{{"", "", "content", "/x?sig=1"}}, there)
	for path, want := range map[string]string{
		"/round": "the server redirects more than 10 times", "/login": "the server redirects to an address with credentials",
		"/file": "the server redirects from http to file, which is less safe", "/found": "as a GET, without its body",
	} {
		err := post(path)
		require.ErrorContains(t, err, want)
		require.False(t, temporary(err), path)
		require.NotContains(t, err.Error(), "secret")
		require.NotContains(t, err.Error(), "password")
	}
	require.Len(t, here, 1)
}

//stepmux:faults artifacts | The signature of a presigned URL is in an error or in the log
//stepmux:with remote/jobcache.TestACacheGoesToAPresignedURLAndComesFromIt
func TestErrorsHaveNoSecrets(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := "http://" + closed.Addr().String()
	require.NoError(t, closed.Close())
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"message":"bad\u001b[31m artifact"}`)
	})
	c := newClient(t, Config{})
	for at, want := range map[string]string{
		address + "/x?sig=secret":           "connection refused",
		s.URL + "/x?sig=secret":             "answers 400 Bad Request: bad [31m artifact",
		"https://%zz/?sig=secret":           "the URL is not valid",
		"ftp://host/?sig=secret":            "the URL is not valid",
		"secret":                            "the URL is not valid",
		"https://user:secret@host.invalid/": "the URL has a user name or password in it",
		strings.Replace(s.URL, "http:", "https:", 1) + "/?sig=secret": "server gave HTTP response to HTTPS client",
	} {
		err := send(t.Context(), c, Request{Method: http.MethodGet, URL: at, OK: []int{200}})
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
	}
	require.Equal(t, "https://host/a/b", Plain("https://u:p@host:443/a/b?sig=secret"))
	require.Equal(t, "(not a URL)", Plain("https://%zz?secret"))
}

func TestCertificatesOfAFileAreTrusted(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	s.Config.ErrorLog = nil
	ask := func(cfg Config) error {
		resp, err := newClient(t, cfg).Do(t.Context(), Request{Method: http.MethodGet, URL: s.URL, OK: []int{200}})
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	err := ask(Config{})
	require.ErrorContains(t, err, "certificate")
	require.False(t, temporary(err))
	file := filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	require.NoError(t, os.WriteFile(file, data, 0o600))
	require.NoError(t, ask(Config{CAFile: file}))
	require.NoError(t, os.WriteFile(file, []byte("no"), 0o600))
	_, err = New(Config{CAFile: file})
	require.ErrorContains(t, err, file+" has no certificate in PEM form")
	_, err = New(Config{CertFile: file, KeyFile: file})
	require.ErrorContains(t, err, "--tls-cert-file")
}

func TestAReadErrorOfTheBodyIsNotRetried(t *testing.T) {
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	c := newClient(t, Config{})
	for _, open := range []func() (io.ReadCloser, error){
		func() (io.ReadCloser, error) { return nil, os.ErrPermission },
		func() (io.ReadCloser, error) {
			r, w := io.Pipe()
			w.CloseWithError(os.ErrPermission)
			return r, nil
		},
	} {
		err := send(t.Context(), c, Request{Method: http.MethodPost, URL: s.URL, OK: []int{200}, Length: -1, Body: open})
		require.ErrorIs(t, err, os.ErrPermission)
		require.False(t, temporary(err))
	}
}

// A refusal arrives before the body is sent, and is not lost.
func TestAServerCanRefuseBeforeItHasTheBody(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) })
	c := newClient(t, Config{})
	for range 20 {
		err := send(t.Context(), c, Request{
			Method: http.MethodPost, URL: s.URL, OK: []int{201}, Length: -1,
			Body: func() (io.ReadCloser, error) { return io.NopCloser(endless{}), nil },
		})
		status, ok := errors.AsType[*StatusError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, 413, status.Code)
	}
}

func TestLongTransfersAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := newMeter(Log{&log}, "Uploading cache", 10*time.Second, 64<<20)
		for range 3 {
			m.moved(8 << 20)
			time.Sleep(6 * time.Second) //nolint:forbidigo // of the bubble
		}
		m.moved(1)
		require.Equal(t, "Uploading cache: 24.0 MiB of 64.0 MiB, 2.0 MiB/s\n", log.String())
	})
}

func TestSizesAreReadable(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1536: "1.5 KiB", 3 << 40: "3.0 TiB"} {
		require.Equal(t, want, Size(n))
	}
}

func TestLogLinesCannotPoseAsOthers(t *testing.T) {
	var b bytes.Buffer
	Log{&b}.Warn("a\nFATAL: b\x1b[2K")
	require.Equal(t, "WARNING: a FATAL: b?[2K\n", b.String())
}

func TestSaveIsBounded(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer file.Close()
	save := func(declared, limit int64) error {
		resp := &http.Response{ContentLength: declared, Body: io.NopCloser(io.LimitReader(endless{}, 1<<20))}
		defer resp.Body.Close()
		return Save(file, resp, limit)
	}
	require.NoError(t, save(-1, 1<<20))
	require.ErrorContains(t, save(1<<20, 1<<19), "larger than the limit of 512.0 KiB")
	err = save(-1, 1<<19)
	require.ErrorContains(t, err, "larger than the limit of 512.0 KiB")
	require.False(t, temporary(err))
}
