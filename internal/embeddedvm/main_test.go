package embeddedvm_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onBoth runs a test against an embedded VM and against a real sshd, because both must behave alike. limits is
// sshd_config for the options of config.
func onBoth(t *testing.T, config embeddedvm.Config, limits []string, test func(t *testing.T, s *sshtest.Server)) {
	t.Run("vm", func(t *testing.T) { test(t, sshtest.InProcess(t, config)) })
	t.Run("openssh", func(t *testing.T) { test(t, sshtest.OpenSSH(t, limits...)) })
}

// dial logs in to s.
func dial(t *testing.T, s *sshtest.Server) *ssh.Client {
	t.Helper()
	client, err := ssh.Dial("tcp", s.Addr, s.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// start starts a command in a new session.
func start(t *testing.T, client *ssh.Client, command string) *running {
	t.Helper()
	session, err := client.NewSession()
	require.NoError(t, err)
	t.Cleanup(func() { _ = session.Close() })
	r := &running{Session: session}
	r.stdin, err = session.StdinPipe()
	require.NoError(t, err)
	r.stdout, err = session.StdoutPipe()
	require.NoError(t, err)
	session.Stderr = &r.stderr
	require.NoError(t, session.Start(command))
	return r
}

type running struct {
	*ssh.Session
	stdin  io.WriteCloser
	stdout io.Reader
	stderr bytes.Buffer // complete after Wait
}

// line reads a line of output.
func (r *running) line(t *testing.T) string {
	t.Helper()
	var line []byte
	for b := make([]byte, 1); ; {
		_, err := io.ReadFull(r.stdout, b)
		require.NoError(t, err, "after %q", line)
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

// output runs a command to its end.
func output(t *testing.T, client *ssh.Client, command string) string {
	t.Helper()
	session, err := client.NewSession()
	require.NoError(t, err)
	defer session.Close()
	out, err := session.Output(command)
	require.NoError(t, err)
	return string(out)
}

// eventually waits until other processes make a condition true.
func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, sshtest.Bound, 5*time.Millisecond, what)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// alive reports whether the process with the ID in a file lives; a zombie does not.
func alive(t *testing.T, pidFile string) bool {
	t.Helper()
	pid, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	return err == nil && sshtest.Runs(n)
}

// fifo makes a named pipe on which a command of a test waits.
func fifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	t.Cleanup(func() { // commands outlive their connection, so let go of those that still wait
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			_ = f.Close()
		}
	})
	return path
}

// write writes a line to a fifo.
func write(t *testing.T, path, line string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0) // for both, so that it does not wait for the reader
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() }) // not before it was read
	_, err = f.WriteString(line + "\n")
	require.NoError(t, err)
}
