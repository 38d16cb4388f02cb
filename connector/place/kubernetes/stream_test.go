package kubernetes_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/place/kubernetes"
	"github.com/stepmux/stepmux/internal/testing/kubetest"
	"github.com/stepmux/stepmux/mux/channel"
)

// answered returns a cluster whose execs are answered by messages, after which the server hangs up.
func answered(t *testing.T, messages ...string) *kubernetes.Cluster {
	t.Helper()
	s := kubetest.Serve(t)
	s.Answer = func(w http.ResponseWriter, r *http.Request) bool {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"v5.channel.k8s.io"}})
		if err != nil {
			return true
		}
		for _, text := range messages {
			_ = conn.Write(context.Background(), websocket.MessageBinary, []byte(text)) // the client may have had enough
		}
		_ = conn.CloseNow() // as a server that is killed
		return true
	}
	return load(t, s)
}

const success = "\x03" + `{"status":"Success"}`

func TestAnExecEndsWellOnlyByTheServersWord(t *testing.T) {
	for name, c := range map[string]struct {
		messages []string
		out      string
		want     string // "" for a good end
	}{
		"good":             {[]string{"\x01", "\x01one ", "\x02oh", "\x01two", success}, "one two", ""},
		"no word":          {[]string{"\x01one"}, "one", "the stream to the pod was cut"},
		"nothing at all":   {nil, "", "the stream to the pod was cut"},
		"no status in it":  {[]string{"\x03{}"}, "", "word about the end of the command is"},
		"an empty word":    {[]string{"\x03"}, "", "word about the end of the command is"},
		"no JSON":          {[]string{"\x03oh"}, "", "word about the end of the command is"},
		"endless":          {[]string{"\x03" + strings.Repeat(" ", 70<<10)}, "", "is too long"},
		"an empty message": {[]string{""}, "", "without a channel"},
		"unknown channel":  {[]string{"\x04x", "\xff\x01", "\x01a", success}, "a", ""},
		"failure": {
			[]string{"\x03" + `{"status":"Failure","message":"no\nshell"}`}, "", "could not be executed: no shell",
		},
		"exit status 0 failed": {
			[]string{"\x03" + `{"status":"Failure","reason":"NonZeroExitCode"}`}, "", "could not be executed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := answered(t, c.messages...).Execute(t.Context(), "p", "", "true")
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
			require.Equal(t, c.out, out)
		})
	}
}

func TestAnExecTellsItsExitStatusAndTakesTheEndOfItsInput(t *testing.T) {
	requireExecs(t, kubetest.Serve(t))
}

// requireExecs runs commands in a pod of the server, and checks their input, output and exit status.
func requireExecs(t *testing.T, s *kubetest.Server) {
	t.Helper()
	c := load(t, s)
	p := start(t, config(t, c))
	long := strings.Repeat("0123456789", 20<<10)
	out, err := c.Execute(t.Context(), p.Name(), long, "sh", "-c", "cat; exit 7")
	exit := (*channel.ExitError)(nil)
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.Status)
	require.Equal(t, long, out)
	out, err = c.Execute(t.Context(), p.Name(), "x", "cat")
	require.NoError(t, err)
	require.Equal(t, "x", out)
	_, err = c.Execute(t.Context(), "other", "", "true")
	require.ErrorContains(t, err, `pods "other" not found`)
}

func TestAServerWithoutTheProtocolIsNamed(t *testing.T) {
	s := kubetest.Serve(t)
	s.Answer = func(w http.ResponseWriter, r *http.Request) bool {
		conn, err := websocket.Accept(w, r, nil)
		if err == nil {
			_ = conn.CloseNow()
		}
		return true
	}
	_, err := load(t, s).Execute(t.Context(), "p", "", "true")
	require.ErrorContains(t, err, "used SPDY because the API server refused WebSocket: "+
		"the API server does not speak v5.channel.k8s.io")
}

// noWebSockets answers as an API server or a proxy that does not know the protocol.
func noWebSockets(w http.ResponseWriter, r *http.Request) bool {
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	return false
}

func TestWithoutWebSocketsExecsGoBySPDY(t *testing.T) {
	s := kubetest.Serve(t)
	s.Answer = noWebSockets
	requireExecs(t, s)
}

// Symptom: a proxy before the API server that once had too many requests turned all execs of a manager to SPDY, for
// good.
func TestAProxyWithTooManyRequestsMayTakeWebSockets(t *testing.T) {
	s := kubetest.Serve(t)
	var many atomic.Bool
	var bySPDY atomic.Int64
	s.Answer = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.Header.Get("Upgrade"), "SPDY") {
			bySPDY.Add(1)
		} else if many.Load() {
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		return false
	}
	c := load(t, s)
	p := start(t, config(t, c))
	many.Store(true)
	_, err := c.Execute(t.Context(), p.Name(), "", "true")
	many.Store(false)
	require.ErrorContains(t, err, "429 Too Many Requests")
	_, err = c.Execute(t.Context(), p.Name(), "", "true")
	require.NoError(t, err)
	require.Zero(t, bySPDY.Load())
}

// client-go takes a connection that was lost for a command that ended well.
func TestAnExecBySPDYThatIsCutHasNotEnded(t *testing.T) {
	s := kubetest.Serve(t)
	s.Answer = noWebSockets
	c := load(t, s)
	p := start(t, config(t, c))
	dir := t.TempDir()
	runs, end := filepath.Join(dir, "runs"), filepath.Join(dir, "end")
	require.NoError(t, syscall.Mkfifo(runs, 0o600))
	require.NoError(t, syscall.Mkfifo(end, 0o600))
	var cutter sync.WaitGroup
	cutter.Go(func() {
		_, err := os.ReadFile(runs)
		assert.NoError(t, err)
		s.Cut()
	})
	_, err := c.Execute(t.Context(), p.Name(), "", "sh", "-c", "echo half; echo >"+runs+"; read x <"+end)
	require.ErrorContains(t, err, "the stream to the pod was cut")
	cutter.Wait()
	require.NoError(t, os.WriteFile(end, []byte("x\n"), 0o600)) // the command went on
}
