package sshtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/stepmux/stepmux/internal/embeddedvm"
)

// Server is an SSH server under test, with everything that a client needs to log in to it.
type Server struct {
	Name string // for the names of subtests
	Addr string // host:port
	User string // may log in with Signer; the user of this process

	HostKey ssh.PublicKey // its only host key
	Signer  ssh.Signer    // an authorized key

	KnownHosts   string // a known_hosts file that has Addr and HostKey
	IdentityFile string // Signer in OpenSSH's private key format, mode 0600

	// VM is the server itself if it runs inside the test process, else nil.
	VM *embeddedvm.Server

	daemon *daemon // the server itself if it is OpenSSH's, else nil
}

// InProcess starts an embedded VM. Besides the keys of config, Signer may log in.
func InProcess(t testing.TB, config embeddedvm.Config) *Server {
	t.Helper()
	s := newServer(t, "in-process")
	config.AuthorizedKeys = append([]ssh.PublicKey{s.Signer.PublicKey()}, config.AuthorizedKeys...)
	vm, err := embeddedvm.Start(config)
	require.NoError(t, err)
	s.VM = vm
	s.Addr, s.HostKey = vm.Addr(), vm.HostKey()
	s.KnownHosts = writeKnownHosts(t, s.Addr, s.HostKey)
	t.Cleanup(s.Stop)
	return s
}

// newServer makes a Server with a new client key.
func newServer(t testing.TB, name string) *Server {
	t.Helper()
	s := &Server{Name: name, User: currentUser(t)}
	s.IdentityFile, s.Signer = writeKey(t, "id")
	return s
}

// Via returns s as a client reaches it through a proxy that listens on addr.
func (s *Server) Via(t testing.TB, addr string) *Server {
	t.Helper()
	via := *s
	via.Name += " via proxy"
	via.Addr = addr
	via.KnownHosts = writeKnownHosts(t, addr, s.HostKey)
	return &via
}

// ClientConfig returns a configuration for x/crypto's client that logs in to s and knows its host key.
func (s *Server) ClientConfig() *ssh.ClientConfig {
	return &ssh.ClientConfig{
		User:              s.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(s.Signer)},
		HostKeyCallback:   ssh.FixedHostKey(s.HostKey),
		HostKeyAlgorithms: []string{s.HostKey.Type()},
	}
}

// TotalConns returns how many TCP connections the server has accepted. OpenSSH's daemon counts a connection when it
// starts to talk to it, so the count is exact for connections that have logged in.
func (s *Server) TotalConns() int {
	if s.VM != nil {
		return s.VM.Stat().TotalConns
	}
	return s.daemon.log.count("Connection from ")
}

// Stop ends the server, its connections and the commands of open connections now, and waits for them. The end of the
// test calls it. It is idempotent.
func (s *Server) Stop() {
	if s.VM != nil {
		_ = s.VM.Close() // always nil
		return
	}
	s.daemon.stop()
}

// SocketDir returns a new directory with a path short enough for Unix sockets; that of t.TempDir may be too long. The
// end of the test removes it.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() {
		var err error
		require.Eventually(t, func() bool {
			err = os.RemoveAll(dir) // fails if a relay that is ending renames its own directory there at the same time
			return err == nil
		}, Bound, time.Millisecond, "%v", &err)
	})
	return dir
}

func writeKnownHosts(t testing.TB, addr string, key ssh.PublicKey) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "known_hosts")
	line := knownhosts.Line([]string{knownhosts.Normalize(addr)}, key) + "\n"
	require.NoError(t, os.WriteFile(path, []byte(line), 0o600))
	return path
}
