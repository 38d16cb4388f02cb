package sshdoor_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance/manager/sshdoor"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests of the door before a manager and its VMs are those of package manager.

// newKey returns a key of a client, and its line in a file of authorized keys.
func newKey(t *testing.T) (ssh.Signer, string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return key, string(ssh.MarshalAuthorizedKey(key.PublicKey()))
}

// serve serves SSH for a host that has no slots.
func serve(ctx context.Context, t *testing.T, listener net.Listener, cfg sshdoor.Config) error {
	t.Helper()
	return sshdoor.Serve(ctx, listener, cfg, sshdoor.Host{
		Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
		Reserve: func(context.Context, sshdoor.Request, func(int) error) (*sshdoor.Slot, error) {
			return nil, errors.New("this host has no slots")
		},
	})
}

func TestBadKeyFilesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, key := newKey(t)
	refused := func(message, keys string, mode os.FileMode, host string) {
		t.Helper()
		file := filepath.Join(dir, "keys")
		require.NoError(t, os.WriteFile(file, []byte(keys), 0o600))
		require.NoError(t, os.Chmod(file, mode))
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		err = serve(t.Context(), t, listener, sshdoor.Config{KeysFile: file, HostKeyFile: host})
		require.ErrorContains(t, err, message)
	}
	refused("others can write", key, 0o666, "")
	refused(`keys:2: the options "command=\"x\"" are not supported`, "#\ncommand=\"x\" "+key, 0o600, "")
	refused("keys:1: ", "nonsense\n", 0o600, "")
	host := filepath.Join(dir, "host")
	require.NoError(t, os.WriteFile(host, []byte("x"), 0o644))
	refused("can be read by others", key, 0o600, host)
	require.NoError(t, os.Chmod(host, 0o600))
	refused("no key found", key, 0o600, host)
}

// Clients that never log in are closed, whatever they say before.
func TestSSHClientsThatNeverLogInAreClosed(t *testing.T) {
	sshdoor.SetLoginTimeout(t, 100*time.Millisecond)
	_, key := newKey(t)
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, []byte(key), 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	serving.Go(func() {
		if err := serve(ctx, t, listener, sshdoor.Config{KeysFile: file}); err != nil {
			t.Errorf("serve SSH: %v", err)
		}
	})
	address := listener.Addr().String()
	for _, says := range []string{"", "SSH-2.0-x", "SSH-2.0-x\r\n", "SSH-2.0-x\r\n\x00\x00\x01"} {
		nc, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer nc.Close()
		_, err = nc.Write([]byte(says))
		require.NoError(t, err)
		require.NoError(t, nc.SetReadDeadline(time.Now().Add(sshtest.Bound)))
		_, err = io.Copy(io.Discard, nc)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, fmt.Sprintf("%q", says))
	}
	config := &ssh.ClientConfig{User: "any", HostKeyCallback: ssh.InsecureIgnoreHostKey()} // a test's
	// One with another key, and one that asks for a user again and again, and shows no key.
	other, _ := newKey(t)
	for _, auth := range []ssh.AuthMethod{
		ssh.PublicKeys(other), ssh.RetryableAuthMethod(ssh.Password("x"), 1000),
	} {
		config.Auth = []ssh.AuthMethod{auth}
		_, err = ssh.Dial("tcp", address, config)
		require.Error(t, err)
	}
}
