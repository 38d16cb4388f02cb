package sshtest

import (
	"crypto/ed25519"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// Dropbear starts dropbear's server, which is no OpenSSH. The test is skipped without it, or without root; if
// STEPMUX_REQUIRE_PARTS is 1, it fails without it.
func Dropbear(t testing.TB) *Server {
	t.Helper()
	RequirePart(t, "dropbear-bin", "/usr/sbin/dropbear")
	key := filepath.Join(t.TempDir(), "host")
	out, err := exec.Command("dropbearkey", "-t", "ed25519", "-f", key).CombinedOutput()
	require.NoError(t, err, "%s", out)
	s, home := privateHome(t, "dropbear")
	_, line, found := strings.Cut(string(out), "\nssh-ed25519 ")
	require.True(t, found, "%s", out)
	s.HostKey, _, _, _, err = ssh.ParseAuthorizedKey([]byte("ssh-ed25519 " + line))
	require.NoError(t, err)
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	log := &Log{}
	cmd := inHome(t, home, "dropbear", "-F", "-E", "-p", s.Addr, "-r", key)
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // its log says more
		if t.Failed() {
			t.Logf("log of dropbear:\n%s", log)
		}
	})
	require.Eventually(t, func() bool {
		nc, err := net.Dial("tcp", s.Addr)
		if err == nil {
			nc.Close()
		}
		return err == nil
	}, Bound, time.Millisecond)
	return s
}

// TinySSH starts a TinySSH: a server that answers global requests with SSH_MSG_UNIMPLEMENTED, and allows one session in
// the life of a connection. The test is skipped or fails as for Dropbear.
func TinySSH(t testing.TB) *Server {
	t.Helper()
	RequirePart(t, "tinysshd", "/usr/sbin/tinysshd")
	keys := filepath.Join(t.TempDir(), "keys")
	out, err := exec.Command("tinysshd-makekey", keys).CombinedOutput()
	require.NoError(t, err, "%s", out)
	s, home := privateHome(t, "tinyssh")
	public, err := os.ReadFile(filepath.Join(keys, "ed25519.pk"))
	require.NoError(t, err)
	s.HostKey, err = ssh.NewPublicKey(ed25519.PublicKey(public))
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.Addr = listener.Addr().String()
	log := &Log{}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			nc, err := listener.Accept()
			if err != nil {
				return // the end of the test
			}
			running.Go(func() {
				file, err := nc.(*net.TCPConn).File() //nolint:forcetypeassert // it is of a TCP listener
				_ = nc.Close()
				if err != nil {
					return
				}
				defer file.Close()
				cmd := inHome(t, home, "tinysshd", "-v", keys) // one for each connection, as inetd starts it
				cmd.Stdin, cmd.Stdout, cmd.Stderr = file, file, log
				_ = cmd.Run() // its log says more
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
		if t.Failed() {
			t.Logf("log of tinysshd:\n%s", log)
		}
	})
	return s
}

// privateHome returns a Server whose key is authorized in a new home. Both servers look for authorized keys in the home
// of their user, wherever HOME is.
func privateHome(t testing.TB, name string) (s *Server, home string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the server reads the keys in the home of its user")
	}
	s, home = newServer(t, name), t.TempDir()
	require.NoError(t, os.Chmod(home, 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(home, ".ssh"), 0o700))
	key := ssh.MarshalAuthorizedKey(s.Signer.PublicKey())
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "authorized_keys"), key, 0o600))
	return s, home
}

// inHome runs a server in a mount namespace that has home in the place of root's. It is killed at the end of the test.
func inHome(t testing.TB, home string, argv ...string) *exec.Cmd {
	return exec.CommandContext(t.Context(), "unshare",
		append([]string{"-m", "sh", "-c", `mount --bind "$0" ~root && exec "$@"`, home}, argv...)...)
}
