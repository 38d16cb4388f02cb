package innerport

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// getVar has the URL to which this program, as the program of a container, sends 3 MB. It exits with 5.
const getVar = "STEPMUX_TEST_INNERPORT"

func TestMain(m *testing.M) {
	url := os.Getenv(getVar)
	if url == "" {
		goleak.VerifyTestMain(m)
		return
	}
	resp, err := http.Post(url, "text/plain", strings.NewReader(strings.Repeat("x", 3_000_000)))
	if err == nil {
		var n int64
		n, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err == nil && n != 3_000_000 {
			err = io.ErrUnexpectedEOF
		}
	}
	if err == nil {
		os.Exit(5)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// server returns the address of a server that answers with what it was sent.
func server(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body) // the client sees a failure
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// free returns an address at which nothing listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// A program that only knows the address reaches the server behind the socket, also if the path of that is long.
func TestAProgramReachesTheServerBehindTheSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	require.NoError(t, os.Mkdir(dir, 0o700))
	d, err := Open(filepath.Join(dir, "s"), server(t))
	require.NoError(t, err)
	short := filepath.Join(t.TempDir(), "s")
	require.NoError(t, os.Symlink(filepath.Join(dir, "s"), short))
	inside := free(t)
	own, err := os.Executable()
	require.NoError(t, err)
	var said bytes.Buffer
	require.Equal(t, 5, Run(t.Context(), inside, short, []string{"env", getVar + "=http://" + inside, own}, &said))
	require.Empty(t, said.String())
	_, err = net.Dial("tcp", inside)
	require.Error(t, err, "the port ends with the program")
	d.Close()
	require.NoFileExists(t, filepath.Join(dir, "s"))
}

// Close ends connections that are idle.
func TestCloseEndsConnections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	d, err := Open(path, server(t))
	require.NoError(t, err)
	var conns []net.Conn
	for range maxConns + 2 {
		conn, err := net.Dial("unix", path)
		require.NoError(t, err)
		conns = append(conns, conn)
	}
	d.Close()
	for _, conn := range conns {
		_, err := conn.Read(make([]byte, 1))
		require.Error(t, err)
		conn.Close()
	}
}

func TestAProgramRunsThoughThePortIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for _, c := range []struct {
		argv []string
		want int
		says string
	}{
		{[]string{"sh", "-c", "exit 3"}, 3, ""},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143, ""},
		{[]string{"/no/such/program"}, exitMissing, "start the program of the container"},
		{[]string{"no-such-program"}, exitMissing, "start the program of the container"},
		{[]string{"/etc/passwd"}, exitNotExecutable, "permission denied"},
	} {
		var said bytes.Buffer
		require.Equal(t, c.want, Run(t.Context(), taken.Addr().String(), "/no/socket", c.argv, &said), c.argv)
		require.Contains(t, said.String(), "the services for artifacts and caches are not there: listen tcp")
		require.Contains(t, said.String(), c.says)
	}
}

// A signal to this process goes to the program, which decides how it ends.
func TestSignalsGoToTheProgram(t *testing.T) {
	var said bytes.Buffer
	script := `trap 'exit 9' USR1; kill -USR1 $PPID; while :; do sleep 0.05; done`
	require.Equal(t, 9, Run(t.Context(), free(t), "/no/socket", []string{"sh", "-c", script}, &said), said.String())
}
