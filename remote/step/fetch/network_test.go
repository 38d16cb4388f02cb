package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// A server with a certificate of an unknown authority is trusted if SSL_CERT_FILE names the authority.
func TestGitIsFetchedOverTLSFromTrustedServersOnly(t *testing.T) {
	h := newGitHost(t)
	h.echo("group/echo.git")
	secure := httptest.NewUnstartedServer(h.Config.Handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	address := secure.URL[len("https://"):] + "/group/echo"

	t.Setenv("SSL_CERT_FILE", "")
	t.Setenv("GIT_SSL_CAINFO", "") // it would come first
	require.Contains(t, refused(t, newStore(t), address+"@v1"), "certificate")

	file := filepath.Join(t.TempDir(), "authority.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	t.Setenv("SSL_CERT_FILE", file)
	s := newStore(t)
	known := x509.NewCertPool() // Go's library reads the variable only once, before this
	known.AddCert(secure.Certificate())
	s.client.Transport.(network).TLSClientConfig = &tls.Config{RootCAs: known, MinVersion: tls.VersionTLS12}
	c := get(t, s, address+"@v1")
	require.Equal(t, stepText, read(t, c, "steps/step.yml"))
}

func TestServerThatFallsSilentIsGivenUp(t *testing.T) {
	silence := func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	t.Run("zip", func(t *testing.T) {
		t.Parallel()
		data := fetchtest.Zip(t, fetchtest.Texts(map[string]string{"step.yml": stepText}))
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			_, _ = w.Write(data[:len(data)/2])
			silence(w, r)
		}))
		t.Cleanup(server.Close)
		s := newStore(t)
		s.limits.stall = 50 * time.Millisecond
		require.Contains(t, refused(t, s, "zip+"+server.URL+"/step.zip"), "sent nothing for 50ms")
	})
	t.Run("git", func(t *testing.T) {
		t.Parallel()
		h := newGitHost(t)
		h.echo("group/echo.git")
		h.Before = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost {
				return false
			}
			_, _ = io.Copy(io.Discard, r.Body)
			silence(w, r)
			return true
		}
		s := newStore(t)
		s.limits.stall = time.Second
		require.Contains(t, refused(t, s, "http://"+h.Host+"/group/echo@v1"), "too slow")
	})
}

// Symptom: orphans of a killed git stayed as zombies. Serve is the parent of the orphans among its descendants.
//
//stepmux:faults fetch | Processes of a git that was cut off stay as zombies
func TestFetchThatIsCutOffLeavesNoProcess(t *testing.T) {
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	t.Cleanup(func() { require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) })
	h := newGitHost(t)
	commit := h.echo("c/slow")
	s := newStore(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("because")
	h.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		cancel(because) // git and its helper are at work
		<-r.Context().Done()
		return true
	}
	_, err := s.Fetch(ctx, reference(t, h.URL+"/c/slow@"+commit), Credentials{})
	require.ErrorIs(t, err, because)
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		name, rest, _ := strings.Cut(string(data), ") ")
		if fields := strings.Fields(rest); fields[1] == strconv.Itoa(os.Getpid()) {
			require.NotContains(t, name, "git", "state %s", fields[0])
		}
	}
}
