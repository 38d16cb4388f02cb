package login_test

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skeema/knownhosts"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// FuzzKnownHosts holds that a server whose key is not in a known_hosts file is refused, whatever the file holds.
func FuzzKnownHosts(f *testing.F) {
	server := sshtest.InProcess(f, embeddedvm.Config{})
	stranger, _ := sshtest.NewKey(f)
	other := knownhosts.Line([]string{knownhosts.Normalize(server.Addr)}, stranger.PublicKey())
	for _, text := range []string{
		"", "# x\n", other, "@revoked * " + strings.SplitN(other, " ", 2)[1], "@cert-authority " + other,
		"|1|x|y ssh-rsa AAAA", "a b", "* ssh-ed25519 AAAA",
	} {
		f.Add(text)
	}
	key := strings.SplitN(knownhosts.Line([]string{"x"}, server.HostKey), " ", 3)[2]
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "known_hosts")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		hosts, err := login.KnownHosts(file)
		if err != nil || strings.Contains(text, key[:20]) {
			return
		}
		cfg := config(server)
		cfg.HostKeys = hosts
		_, err = mux.Dial(sshtest.Within(t), server.Addr, cfg)
		dial := (*mux.DialError)(nil)
		require.ErrorAs(t, err, &dial)
		require.Equal(t, "host key", dial.Stage)
	})
}

// FuzzIdentity holds that every private key that is read is usable, and that errors do not quote the text.
func FuzzIdentity(f *testing.F) {
	_, private := sshtest.NewKey(f)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(f, err)
	f.Add(pem.EncodeToMemory(block))
	f.Add([]byte("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"))
	f.Add([]byte("ssh-ed25519 AAAA"))
	f.Fuzz(func(t *testing.T, text []byte) {
		auth, err := login.ParseIdentity("key", text)
		if err != nil {
			require.Less(t, len(err.Error()), 512)
			return
		}
		require.NotNil(t, auth.PublicKey())
		again, err := ssh.ParsePublicKey(auth.PublicKey().Marshal())
		require.NoError(t, err)
		require.Equal(t, auth.PublicKey().Marshal(), again.Marshal())
	})
}
