package login

import (
	"crypto/ed25519"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

func TestAKeyFileMayHaveItsPublicKeyBehindThePrivateOne(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(key)
	require.NoError(t, err)
	public := ssh.MarshalAuthorizedKey(signer.PublicKey())
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, append(pem.EncodeToMemory(block), public...), 0o600))
	_, err = KeyFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, public, 0o600))
	_, err = KeyFile(path)
	require.ErrorContains(t, err, "it is a public key; name the private key")
}
