package sshtest_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eachServer runs a test on every kind of server, each started by the subtest that uses it.
func eachServer(t *testing.T, test func(t *testing.T, s *sshtest.Server)) {
	for name, start := range map[string]func(t *testing.T) *sshtest.Server{
		"in-process":            func(t *testing.T) *sshtest.Server { return sshtest.InProcess(t, embeddedvm.Config{}) },
		"openssh":               func(t *testing.T) *sshtest.Server { return sshtest.OpenSSH(t) },
		"openssh MaxSessions 2": func(t *testing.T) *sshtest.Server { return sshtest.OpenSSH(t, "MaxSessions 2") },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			require.Equal(t, name, s.Name)
			test(t, s)
		})
	}
}

func dial(t *testing.T, s *sshtest.Server) *ssh.Client {
	t.Helper()
	client, err := ssh.Dial("tcp", s.Addr, s.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func output(t *testing.T, client *ssh.Client, command string) string {
	t.Helper()
	session, err := client.NewSession()
	require.NoError(t, err)
	defer session.Close()
	out, err := session.Output(command)
	require.NoError(t, err)
	return string(out)
}

func TestServerLetsItsSignerInAndCountsConnections(t *testing.T) {
	eachServer(t, func(t *testing.T, s *sshtest.Server) {
		require.Zero(t, s.TotalConns())
		client := dial(t, s)
		require.Equal(t, "hello\n", output(t, client, "echo hello"))
		require.Equal(t, 1, s.TotalConns())
		dial(t, s)
		require.Equal(t, 2, s.TotalConns())
	})
}

func TestClientCanUseTheFilesOfAServer(t *testing.T) {
	eachServer(t, func(t *testing.T, s *sshtest.Server) {
		s = s.Via(t, sshtest.Proxy(t, s.Addr).Addr())
		info, err := os.Stat(s.IdentityFile)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		key, err := os.ReadFile(s.IdentityFile)
		require.NoError(t, err)
		signer, err := ssh.ParsePrivateKey(key)
		require.NoError(t, err)
		known, err := knownhosts.New(s.KnownHosts)
		require.NoError(t, err)

		config := s.ClientConfig()
		config.Auth = []ssh.AuthMethod{ssh.PublicKeys(signer)}
		config.HostKeyCallback = known
		client, err := ssh.Dial("tcp", s.Addr, config)
		require.NoError(t, err)
		require.NoError(t, client.Close())
	})
}

func TestServersHaveKeysOfTheirOwn(t *testing.T) {
	a, b := sshtest.InProcess(t, embeddedvm.Config{}), sshtest.InProcess(t, embeddedvm.Config{})
	config := a.ClientConfig()
	_, err := ssh.Dial("tcp", b.Addr, config)
	require.ErrorContains(t, err, "host key mismatch")
	config.HostKeyCallback = ssh.FixedHostKey(b.HostKey)
	_, err = ssh.Dial("tcp", b.Addr, config)
	require.ErrorContains(t, err, "unable to authenticate")
}

func TestStopEndsConnectionsAndTheirCommands(t *testing.T) {
	eachServer(t, func(t *testing.T, s *sshtest.Server) {
		client := dial(t, s)
		pidFile := filepath.Join(t.TempDir(), "pid")
		session, err := client.NewSession()
		require.NoError(t, err)
		stdin, err := session.StdinPipe()
		require.NoError(t, err)
		defer stdin.Close()
		// A grandchild that ignores the end of its stdin, SIGHUP and SIGTERM.
		require.NoError(t, session.Start("sh -c 'trap \"\" HUP TERM; echo $$ > "+pidFile+".new; "+
			"mv "+pidFile+".new "+pidFile+"; while :; do sleep 1; done'; true"))
		require.Eventually(t, func() bool { return alive(pidFile) }, sshtest.Bound, 5*time.Millisecond)

		s.Stop()
		s.Stop()
		require.Error(t, client.Wait())
		require.Eventually(t, func() bool { return !alive(pidFile) }, sshtest.Bound, 5*time.Millisecond)
		_, err = ssh.Dial("tcp", s.Addr, s.ClientConfig())
		require.Error(t, err)
	})
}

// alive reports whether the process with the ID in a file lives; a zombie does not.
func alive(pidFile string) bool {
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		return false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	return err == nil && sshtest.Runs(n)
}

func TestLinesOfTheCallerWin(t *testing.T) {
	client := dial(t, sshtest.OpenSSH(t, "MaxSessions 1"))
	_, err := client.NewSession()
	require.NoError(t, err)
	_, err = client.NewSession()
	var refusal *ssh.OpenChannelError
	require.ErrorAs(t, err, &refusal)
}

func TestSocketDirLeavesRoomForASocketsName(t *testing.T) {
	dir := sshtest.SocketDir(t)
	require.DirExists(t, dir)
	require.Less(t, len(dir)-len(os.TempDir()), 20)
}
