package sshtest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	sshdPath = "/usr/sbin/sshd"

	// requireParts is the environment variable that, set to 1, makes a missing part of the machine
	// fail the test instead of skipping it.
	requireParts = "STEPMUX_REQUIRE_PARTS"

	// portTries bounds the attempts to start a daemon on a free port, which another process may take first.
	portTries = 10
)

// OpenSSH starts the machine's own sshd as a daemon with stock limits. lines are lines of sshd_config, such as
// "MaxSessions 2". They come first, so they override ours; Match blocks are not possible. Only the user of this process
// can log in, with Signer. If the login shell is bash, it does not read the user's start-up files.
//
// If there is no sshd, the test is skipped, or fails if STEPMUX_REQUIRE_PARTS is 1. If the test fails, its output has
// the daemon's log.
func OpenSSH(t testing.TB, lines ...string) *Server {
	t.Helper()
	RequirePart(t, "openssh-server", sshdPath)
	if os.Geteuid() == 0 {
		require.NoError(t, os.MkdirAll("/run/sshd", 0o755)) // its privilege separation directory
	}
	s := newServer(t, strings.Join(append([]string{"openssh"}, lines...), " "))
	hostKeyFile, host := writeKey(t, "host")
	s.HostKey = host.PublicKey()
	dir := t.TempDir()
	keys := filepath.Join(dir, "authorized_keys")
	require.NoError(t, os.WriteFile(keys, ssh.MarshalAuthorizedKey(s.Signer.PublicKey()), 0o600))

	for try := 0; s.daemon == nil; try++ {
		require.Less(t, try, portTries, "sshd found no free port")
		port := freePort(t)
		config := append(append([]string(nil), lines...),
			"ListenAddress 127.0.0.1",
			"Port "+strconv.Itoa(port),
			"HostKey "+hostKeyFile,
			"AuthorizedKeysFile "+keys,
			"PidFile none",
			"StrictModes no", // directories of tests may be writable for others
			"UsePAM no",
			"PasswordAuthentication no",
			"KbdInteractiveAuthentication no",
			"LogLevel VERBOSE", // tells of each connection; see TotalConns
			// bash reads the user's .bashrc for a command of sshd's if it is the outermost shell. Those files are not
			// under test, can take most of a second, and some take locks that a killed login leaves behind.
			"SetEnv SHLVL=1 "+vmconfig.LevelVar+"="+os.Getenv(vmconfig.LevelVar),
		)
		path := filepath.Join(dir, "sshd_config")
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(config, "\n")+"\n"), 0o600))
		daemon, err := startDaemon(path)
		require.NoError(t, err)
		s.daemon = daemon // nil if the port was taken
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	s.KnownHosts = writeKnownHosts(t, s.Addr, s.HostKey)
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("log of %s at %s:\n%s", s.Name, s.Addr, s.daemon.log)
		}
	})
	return s
}

// RequirePart skips the test if the machine has no file at path, which the package part installs. It fails the test
// instead if STEPMUX_REQUIRE_PARTS is 1.
func RequirePart(t testing.TB, part, path string) {
	t.Helper()
	_, err := os.Stat(path)
	if err == nil {
		return
	}
	message := fmt.Sprintf("part missing: %s: %v", part, err)
	if os.Getenv(requireParts) == "1" {
		t.Fatal(message)
		return
	}
	t.Skip(message)
}

// freePort returns a port of 127.0.0.1 that was free a moment ago.
func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	addr, ok := listener.Addr().(*net.TCPAddr)
	require.True(t, ok)
	return addr.Port
}
