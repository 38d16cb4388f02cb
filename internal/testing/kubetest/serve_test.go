package kubetest

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Symptom: if a test deleted a pod before its init process had started, that process ran on for ten minutes, and the
// end of the test waited for it.
func TestAProcessThatStartsInADeletedPodIsKilled(t *testing.T) {
	s := Serve(t)
	s.Add(Object{"metadata": Object{"name": "a"}})
	s.Delete("a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sleep", "600")
	require.NoError(t, s.start(s.pods["a"], cmd))
	require.Error(t, cmd.Wait())
	require.NoError(t, ctx.Err(), "it was killed by the test")
}

// Symptom: a pod that was created while the test ended was left, and the end of the test waited for its process.
func TestTheEndOfATestDeletesAPodThatIsBeingCreated(t *testing.T) {
	served, answered := make(chan struct{}), make(chan struct{})
	var s *Server
	t.Run("serve", func(t *testing.T) {
		s = Serve(t)
		s.Answer = func(_ http.ResponseWriter, r *http.Request) bool {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			close(served)
			<-r.Context().Done() // the server has closed the connection
			return false
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		go func() {
			defer close(answered)
			pod := `{"metadata": {"name": "a"}, "spec": {"initContainers": [{"command": ["true"]}]}}`
			if answer, err := client.Post(s.http.URL+pods, "", strings.NewReader(pod)); err == nil { // mostly there is none
				answer.Body.Close()
			}
		}()
		<-served
	})
	<-answered
	require.NotEmpty(t, s.pods)
	require.Empty(t, s.Pods())
}
