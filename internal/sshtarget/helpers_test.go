package sshtarget

import (
	"crypto/ed25519"
	"encoding/pem"
	"os"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// home makes a home directory with an ssh_config and no agent.
func home(t testing.TB, config string) string {
	t.Helper()
	dir := t.TempDir()
	t.(*testing.T).Setenv("HOME", dir)
	t.(*testing.T).Setenv("SSH_AUTH_SOCK", "")
	t.(*testing.T).Setenv("XDG_STATE_HOME", "")
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".ssh"), 0o700))
	put(t, filepath.Join(dir, ".ssh", "config"), config)
	return dir
}

func put(t testing.TB, path, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// script writes an executable.
func script(t testing.TB, text string) string {
	t.Helper()
	path := put(t, filepath.Join(t.TempDir(), "command"), "#!/bin/sh\n"+text+"\n")
	require.NoError(t, os.Chmod(path, 0o700))
	return path
}

// key writes a private key and its public half, and returns both.
func key(t testing.TB, path, passphrase string) (private ed25519.PrivateKey, public ssh.PublicKey) {
	t.Helper()
	signer, private := sshtest.NewKey(t)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	put(t, path, string(pem.EncodeToMemory(block)))
	if passphrase != "" {
		sshtest.Lock(t, path, passphrase)
	}
	put(t, path+".pub", string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	return private, signer.PublicKey()
}

// serveAgent serves an agent with these keys.
func serveAgent(t testing.TB, keys ...ed25519.PrivateKey) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, k := range keys {
		require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: k}))
	}
	return sshtest.ServeAgent(t, ring)
}

func me(t testing.TB) string {
	t.Helper()
	u, err := user.Current()
	require.NoError(t, err)
	return u.Username
}

func policies(t testing.TB, all ...string) []Policy {
	t.Helper()
	var ps []Policy
	for _, text := range all {
		p, err := ParsePolicy(text)
		require.NoError(t, err)
		ps = append(ps, p)
	}
	return ps
}

// resolver returns one that takes any host key, unless cfg says otherwise.
func resolver(t testing.TB, cfg ResolverConfig) *Resolver {
	t.Helper()
	if cfg.Policies == nil {
		cfg.Policies = policies(t, "insecure")
	}
	r, err := NewResolver(cfg)
	require.NoError(t, err)
	return r
}

// waysOf returns the names of the ways to log in.
func waysOf(t *Target) []string {
	var all []string
	for _, a := range t.SSH.Auth {
		all = append(all, a.String())
	}
	return all
}

// requireLogin dials a target.
func requireLogin(t testing.TB, target *Target) {
	t.Helper()
	require.NoError(t, loginError(t, target))
}

func loginError(t testing.TB, target *Target) error {
	t.Helper()
	conn, err := mux.Dial(sshtest.Within(t), target.Addr, &target.SSH)
	if err == nil {
		require.NoError(t, conn.Close())
	}
	return err
}
