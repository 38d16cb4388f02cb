package gitlabdoor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/servercall"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// features are those of the tests' runner.
func features() map[string]bool {
	return map[string]bool{"two_phase_job_commit": true, "cancel_gracefully": true, "trace_checksum": true}
}

// newClient returns a client of a fake, in a bubble of synctest.
func newClient(t *testing.T, fake *gitlabtest.Fake) *Client {
	t.Helper()
	c, err := NewClient(Config{
		URL: "http://gitlab.example.com/", Token: gitlabtest.RunnerToken, System: "s_0123456789ab",
		Info: Info{Name: "stepmux", Features: features()},
	})
	require.NoError(t, err)
	c.http = servercall.New(fake.Transport(t))
	return c
}

// take adds a job to a fake and takes it.
func take(t *testing.T, fake *gitlabtest.Fake, c *Client) *Job {
	t.Helper()
	fake.Add(gitlabtest.Script("true"))
	job, _, err := c.Request(t.Context(), "")
	require.NoError(t, err)
	require.NotNil(t, job)
	return job
}

// The client makes the calls of the recorded conversation as GitLab Runner's own client made them, and gets the same
// answers.
func TestTheClientAsksAsGitLabRunnerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := gitlabtest.New(gitlabtest.Config{Hold: 300 * time.Millisecond, Interval: 5 * time.Second, MaxTrace: 1000})
		right := newClient(t, fake)
		right.cfg.Info.Features = map[string]bool{"cancel_gracefully": true} // the conversation's server has the flag off
		for i, l := range gitlabtest.Conversation(t) {
			if l.Act != "" {
				fake.Act(l.Act)
				continue
			}
			var said struct {
				Token         string
				LastUpdate    string `json:"last_update"`
				State         State
				FailureReason string `json:"failure_reason"`
				ExitCode      int    `json:"exit_code"`
				Output        struct {
					Checksum string
					Bytesize int64
				}
			}
			_ = json.Unmarshal(l.Request, &said) // a piece of a trace is none
			c := *right
			c.cfg.Token = said.Token
			job := &Job{Token: l.Header["Job-Token"]}
			_, _ = fmt.Sscanf(l.Path, "jobs/%d", &job.ID)
			switch {
			case l.Path == "runners/verify":
				_, err := c.Verify(t.Context())
				require.Equal(t, l.Status == http.StatusOK, err == nil)
			case l.Path == "jobs/request":
				got, _, err := c.Request(t.Context(), said.LastUpdate)
				require.Equal(t, l.Status == http.StatusCreated, got != nil)
				require.Equal(t, l.Status < 300, err == nil)
			case l.Method == http.MethodPut:
				u := Update{State: said.State, Reason: said.FailureReason, ExitCode: said.ExitCode, Size: said.Output.Bytesize}
				_, _ = fmt.Sscanf(said.Output.Checksum, "crc32:%x", &u.Checksum)
				_, _ = c.Update(t.Context(), job, u)
			case l.Method == http.MethodPatch:
				var piece string
				require.NoError(t, json.Unmarshal(l.Request, &piece))
				var start int64
				_, _ = fmt.Sscanf(l.Header["Content-Range"], "%d-", &start)
				_, err := c.Patch(t.Context(), job, start, []byte(piece))
				require.NoError(t, err)
				l.Header["Accept"] = "application/json"
			default:
				continue // artifacts are for the steps on the VM
			}
			if l.Method == http.MethodPut {
				l.Header["Accept"] = "application/json"
			}
			calls := fake.Calls()
			got := calls[len(calls)-1].Line()
			require.Equal(t, l.Method+" "+l.Path, got.Method+" "+got.Path, "line %d", i+1)
			require.Equal(t, l.Header, got.Header, "line %d", i+1)
			require.Equal(t, l.Status, got.Status, "line %d", i+1)
			require.Equal(t, l.Told, got.Told, "line %d", i+1)
			require.Equal(t, string(l.Answer), string(got.Answer), "line %d", i+1)
			if l.Method == http.MethodPatch {
				require.Equal(t, string(l.Request), string(got.Request))
				continue
			}
			var want, have map[string]any
			require.NoError(t, json.Unmarshal(l.Request, &want))
			require.NoError(t, json.Unmarshal(got.Request, &have))
			for _, fields := range []map[string]any{want, have} {
				delete(fields, "info")     // of each runner itself
				delete(fields, "checksum") // deprecated
			}
			require.Equal(t, want, have, "line %d", i+1)
		}
	})
}

// answer is a fault for all calls.
func answer(status int, text string, header ...string) func(*http.Request) *gitlabtest.Fault {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return func(*http.Request) *gitlabtest.Fault { return &gitlabtest.Fault{Status: status, Header: h, Text: text} }
}

// Each code of the table of calls is a verdict, or an error with the code.
func TestEachCodeHasItsMeaning(t *testing.T) {
	const page = "text/html; charset=utf-8"
	verify := func(c *Client, _ *Job) (Reply, error) {
		_, err := c.Verify(context.Background())
		return Reply{}, err
	}
	request := func(c *Client, _ *Job) (Reply, error) {
		_, _, err := c.Request(context.Background(), "7")
		return Reply{}, err
	}
	update := func(state State) func(c *Client, job *Job) (Reply, error) {
		return func(c *Client, job *Job) (Reply, error) {
			return c.Update(context.Background(), job, Update{State: state})
		}
	}
	patch := func(c *Client, job *Job) (Reply, error) {
		return c.Patch(context.Background(), job, 4, []byte("text"))
	}
	for _, test := range []struct {
		name   string
		call   func(c *Client, job *Job) (Reply, error)
		status int
		header []string
		text   string
		want   Reply
		err    string // empty: none
	}{
		{"a wrong token", verify, 403, nil, `{"message":"403 Forbidden"}`, Reply{}, "the token is none of a runner there"},
		{"an orphaned runner", verify, 422, nil, `{"message":"422 Runner is orphaned"}`, Reply{}, "422 Runner is orphaned"},
		{"another server", verify, 200, nil, `<html>`, Reply{}, "is the URL that of a GitLab?"},
		{"another server's JSON", verify, 200, nil, `[]`, Reply{}, "the answer has no runner"},
		{"a page", verify, 404, []string{"Content-Type", page}, `<html>`, Reply{}, "404 Not Found: a page of HTML; is the"},
		{"a page that forbids", verify, 403, []string{"Content-Type", page}, ``, Reply{}, "a page of HTML"},
		{"no job", request, 204, nil, ``, Reply{}, ""},
		{"a revoked token", request, 403, nil, `{"message":"403 Forbidden"}`, Reply{}, "403 Forbidden"},
		{"a lost race", request, 409, nil, `{"message":"409 Conflict"}`, Reply{}, "409 Conflict"},
		{"too large", request, 413, nil, ``, Reply{}, "413 Request Entity Too Large"},
		{"no JSON", request, 201, nil, `<html>`, Reply{}, "the answer is no job"},
		{"an empty job", request, 201, nil, ``, Reply{}, "the answer is no job"},
		{"a job without a token", request, 201, nil, `{"id":1}`, Reply{}, "the answer is no job"},
		{"a negative job", request, 201, nil, `{"id":-1,"token":"t"}`, Reply{}, "the answer is no job"},
		{"a huge number", request, 201, nil, `{"id":1e30,"token":"t"}`, Reply{}, "the answer is no job"},
		{"a redirect", request, 307, []string{"Location", "http://o.example.com/\xc2\x9b2J"}, ``, Reply{}, "it redirects to"},
		{"kept", update(Pending), 200, nil, "200", Reply{}, ""},
		{"running already", update(Pending), 400, nil, "400", Reply{}, "400 Bad Request"},
		{"assigned already", update(Pending), 409, nil, "409", Reply{}, "409 Conflict"},
		{
			"touched", update(Running), 200,
			[]string{"Job-Status", "running", "X-GitLab-Trace-Update-Interval", "7"},
			"200",
			Reply{Interval: 7 * time.Second},
			"",
		},
		{"canceling", update(Running), 200, []string{"Job-Status", "canceling"}, "200", Reply{Canceling: true}, ""},
		{"canceled", update(Running), 200, []string{"Job-Status", "canceled"}, "200", Reply{Verdict: Ended}, ""},
		{"failed", update(Running), 403, []string{"Job-Status", "failed"}, "{}", Reply{Verdict: Ended}, ""},
		{"forbidden", update(Running), 403, nil, "{}", Reply{Verdict: Ended}, ""},
		{"not found", update(Running), 404, nil, `{"message":"404 Not Found"}`, Reply{Verdict: Ended}, ""},
		{"not found by a proxy", update(Running), 404, []string{"Content-Type", page}, "", Reply{}, "404"},
		{"done", update(Success), 200, []string{"Job-Status", "success"}, "200", Reply{}, ""},
		{"done and failed", update(Failed), 200, []string{"Job-Status", "failed"}, "200", Reply{}, ""},
		{
			"later", update(Success), 202,
			[]string{"X-GitLab-Trace-Update-Interval", "2"},
			"202",
			Reply{Verdict: Later, Interval: 2 * time.Second},
			"",
		},
		{"another trace", update(Success), 412, nil, "412", Reply{Verdict: FromStart}, ""},
		{
			"sent", patch, 202,
			[]string{"Range", "0-8", "X-GitLab-Trace-Update-Interval", "60"},
			"",
			Reply{Size: 8, Interval: time.Minute},
			"",
		},
		{"sent and canceling", patch, 202, []string{"Job-Status", "canceling"}, "", Reply{Size: 8, Canceling: true}, ""},
		{
			"a long pause", patch, 202,
			[]string{"X-GitLab-Trace-Update-Interval", "99999999"},
			"",
			Reply{Size: 8, Interval: 15 * time.Minute},
			"",
		},
		{"no pause", patch, 202, []string{"X-GitLab-Trace-Update-Interval", "-5"}, "", Reply{Size: 8}, ""},
		{"elsewhere", patch, 416, []string{"Range", "0-3"}, "{}", Reply{Verdict: Elsewhere, Size: 3}, ""},
		{
			"elsewhere and canceled", patch, 416,
			[]string{"Range", "0-3", "Job-Status", "canceled"},
			"{}",
			Reply{Verdict: Ended, Size: 3},
			"",
		},
		{"a negative range", patch, 416, []string{"Range", "0--3"}, "{}", Reply{}, `the Range "0--3" is not`},
		{"a range of another unit", patch, 416, []string{"Range", "bytes=0-3"}, "{}", Reply{}, "is not the size"},
		{"no range", patch, 416, nil, "{}", Reply{}, "is not the size"},
		{"a huge range", patch, 416, []string{"Range", "0-99999999999999999999"}, "{}", Reply{}, "is not the size"},
		{"over the limit", patch, 403, nil, "{}", Reply{Verdict: Ended}, ""},
		{"a piece over the proxy's limit", patch, 413, []string{"Content-Type", page}, "", Reply{}, "413"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := gitlabtest.New(gitlabtest.Config{})
				c := newClient(t, fake)
				job := take(t, fake, c)
				fake.Fail(answer(test.status, test.text, test.header...))
				before := len(fake.Calls())
				got, err := test.call(c, job)
				require.Len(t, fake.Calls(), before+1, "it is not repeated")
				if test.err == "" {
					require.NoError(t, err)
					require.Equal(t, test.want, got)
					return
				}
				require.ErrorContains(t, err, test.err)
				require.Less(t, len(err.Error()), 500)
				require.NotContains(t, err.Error(), "\x1b")
				require.NotContains(t, err.Error(), gitlabtest.RunnerToken)
				if test.status != 200 && test.status != 201 {
					require.Equal(t, test.status, StatusOf(err))
				}
			})
		})
	}
}

// What a server cannot answer now is asked again once, or five times in all after the times that it asks for.
func TestTemporaryAnswersAreRepeated(t *testing.T) {
	for _, test := range []struct {
		name        string
		status      int
		header      []string
		least, most time.Duration // of the pauses in all
		tries       int
	}{
		{"backoff", 503, nil, 125 * time.Millisecond, 250 * time.Millisecond, 2},
		{"Retry-After", 429, []string{"Retry-After", "7"}, 28 * time.Second, 28 * time.Second, 5},
		{
			"a reset time", 429,
			[]string{"Retry-After", "7", "RateLimit-ResetTime", "Sat, 01 Jan 2000 00:00:30 GMT"},
			51 * time.Second, 51 * time.Second, 5,
		}, // and then it has passed
		{"a header that lies", 500, []string{"Retry-After", "2000000000"}, 20 * time.Minute, 20 * time.Minute, 5},
		{"a negative time", 502, []string{"Retry-After", "-9"}, 125 * time.Millisecond, 250 * time.Millisecond, 2},
		{"408", 408, nil, 125 * time.Millisecond, 250 * time.Millisecond, 2},
		{"599", 599, nil, 125 * time.Millisecond, 250 * time.Millisecond, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // its time begins on 2000-01-01
				fake := gitlabtest.New(gitlabtest.Config{})
				c := newClient(t, fake)
				job := take(t, fake, c)
				fake.Fail(answer(test.status, "{}", test.header...))
				for range 2 { // each call for itself
					before, began := len(fake.Calls()), time.Now()
					_, err := c.Patch(t.Context(), job, 0, []byte("text"))
					require.Equal(t, test.status, StatusOf(err))
					require.Len(t, fake.Calls(), before+test.tries)
					if took := time.Since(began); test.name != "a reset time" || began.Second() == 0 {
						require.GreaterOrEqual(t, took, test.least)
						require.LessOrEqual(t, took, test.most)
					}
				}
				left := 1
				fake.Fail(func(*http.Request) *gitlabtest.Fault {
					if left--; left < 0 {
						return nil
					}
					return &gitlabtest.Fault{Status: test.status}
				})
				got, err := c.Patch(t.Context(), job, 0, []byte("text"))
				require.NoError(t, err)
				require.EqualValues(t, 4, got.Size)
				require.Equal(t, "text", string(fake.Job(job.ID).Trace), "once")
			})
		})
	}
}

// A server that is slow, gone, or takes the connection and says nothing is an error within a time, and so is the end
// of the context.
func TestErrorsOfTheNetworkAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := gitlabtest.New(gitlabtest.Config{})
		c := newClient(t, fake)
		job := take(t, fake, c)
		fake.Fail(func(*http.Request) *gitlabtest.Fault { return &gitlabtest.Fault{} })
		_, err := c.Patch(t.Context(), job, 0, []byte("text"))
		require.ErrorContains(t, err, "send the trace of the job 1: ")
		require.Zero(t, StatusOf(err))

		hangs := make(chan struct{})
		fake.Fail(func(*http.Request) *gitlabtest.Fault {
			<-hangs
			return nil
		})
		began := time.Now()
		_, err = c.Verify(t.Context())
		require.EqualError(t, err, "verify the runner: no answer within 30s")
		require.Equal(t, callTimeout, time.Since(began))
		why := errors.New("the manager ends")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, _, err = c.Request(ctx, "")
		require.ErrorIs(t, err, why)
		close(hangs)
	})
}

// A job may have large variables. An answer over the bound is refused, and not read.
func TestAnswersAreBounded(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := 2 << 20
		switch {
		case strings.HasSuffix(r.URL.Path, "verify"):
			w.WriteHeader(http.StatusOK)
		case r.Header.Get("Runner-Token") == "large":
			w.Header().Set("Content-Length", strconv.Itoa(maxJob+1))
			w.WriteHeader(http.StatusCreated)
			return
		default:
			w.WriteHeader(http.StatusCreated)
		}
		_, _ = fmt.Fprintf(w, `{"id":3,"token":"t","variables":[{"key":"A","value":"%s"}]}`, strings.Repeat("x", size))
	}))
	defer s.Close()
	c, err := NewClient(Config{URL: s.URL})
	require.NoError(t, err)
	defer c.Close()
	job, _, err := c.Request(t.Context(), "")
	require.NoError(t, err)
	require.EqualValues(t, 3, job.ID)
	require.Greater(t, len(job.Answer), 2<<20)
	_, err = c.Verify(t.Context())
	require.ErrorContains(t, err, "the answer is too large: more than 1 MiB")
	c.cfg.Token = "large"
	_, _, err = c.Request(t.Context(), "")
	require.ErrorContains(t, err, "the answer is too large: more than 64 MiB")
}

// Tokens go to the server of the configuration alone.
func TestNoCallFollowsARedirect(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a redirect was followed")
	}))
	defer elsewhere.Close()
	s := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusPermanentRedirect))
	defer s.Close()
	c, err := NewClient(Config{URL: s.URL, Token: "glrt-secret"})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Verify(t.Context())
	require.ErrorContains(t, err, "it redirects to")
	_, _, err = c.Request(t.Context(), "")
	require.ErrorContains(t, err, "it redirects to")
	_, err = c.Update(t.Context(), &Job{ID: 1, Token: "secret"}, Update{State: Running})
	require.Equal(t, http.StatusPermanentRedirect, StatusOf(err))
	_, err = c.Patch(t.Context(), &Job{ID: 1, Token: "secret"}, 0, []byte("x"))
	require.Equal(t, http.StatusPermanentRedirect, StatusOf(err))
}

// The files of the configuration are an authority and the client's own certificate.
func TestTheClientShowsItsCertificate(t *testing.T) {
	dir := t.TempDir()
	own, key := certificate(t)
	write := func(name, kind string, data []byte) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
		return name
	}
	known := x509.NewCertPool()
	known.AddCert(own)
	s := httptest.NewUnstartedServer(gitlabtest.New(gitlabtest.Config{}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: known, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	defer s.Close()
	files := servercall.Files{
		CA:   write("ca.pem", "CERTIFICATE", s.Certificate().Raw),
		Cert: write("cert.pem", "CERTIFICATE", own.Raw), Key: write("key.pem", "EC PRIVATE KEY", key),
	}
	verify := func(files servercall.Files) error {
		c, err := NewClient(Config{URL: s.URL, Token: gitlabtest.RunnerToken, Files: files})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Verify(t.Context())
		return err
	}
	require.NoError(t, verify(files))
	require.ErrorContains(t, verify(servercall.Files{}), "certificate")
	require.Error(t, verify(servercall.Files{CA: files.CA}))
	require.ErrorIs(t, verify(servercall.Files{CA: files.CA + "x"}), os.ErrNotExist)
	_, err := NewClient(Config{URL: "gitlab.example.com"})
	require.ErrorContains(t, err, "write that of the server")
}

// certificate returns a certificate for a client, and its key.
func certificate(t *testing.T) (*x509.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	data, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	require.NoError(t, err)
	own, err := x509.ParseCertificate(data)
	require.NoError(t, err)
	text, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return own, text
}
