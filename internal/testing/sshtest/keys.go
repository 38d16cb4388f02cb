package sshtest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// NewKey makes an ed25519 key, which no server knows.
func NewKey(t testing.TB) (ssh.Signer, ed25519.PrivateKey) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromSigner(private)
	require.NoError(t, err)
	return signer, private
}

// writeKey makes a key and writes it to a file with mode 0600, as ssh and sshd demand.
func writeKey(t testing.TB, name string) (path string, signer ssh.Signer) {
	t.Helper()
	signer, key := NewKey(t)
	block, err := ssh.MarshalPrivateKey(key, name)
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	return path, signer
}

// Lock gives the private key in a file a passphrase, from which its cipher's key is derived in one round. By default
// there are 16 and more, and each takes a tenth of a second under the race detector.
func Lock(t testing.TB, path, passphrase string) {
	t.Helper()
	out, err := exec.Command("ssh-keygen", "-q", "-p", "-a", "1", "-P", "", "-N", passphrase, "-f", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// currentUser returns the only user that a daemon without root's rights can log in.
func currentUser(t testing.TB) string {
	t.Helper()
	self, err := user.Current()
	require.NoError(t, err)
	return self.Username
}
