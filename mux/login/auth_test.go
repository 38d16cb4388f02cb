package login_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// certificatesOnly starts a real sshd that only accepts users with a certificate by authority.
func certificatesOnly(t testing.TB, authority ssh.Signer) *sshtest.Server {
	t.Helper()
	ca := write(t, "ca.pub", string(ssh.MarshalAuthorizedKey(authority.PublicKey())))
	return sshtest.OpenSSH(t, "TrustedUserCAKeys "+ca, "AuthorizedKeysFile none")
}

// userCert writes a user's certificate.
func userCert(
	t testing.TB, s *sshtest.Server, authority ssh.Signer, key ssh.PublicKey, change func(*ssh.Certificate),
) string {
	t.Helper()
	cert := certify(t, authority, key, ssh.UserCert, func(c *ssh.Certificate) {
		c.ValidPrincipals = []string{s.User}
		if change != nil {
			change(c)
		}
	})
	return string(ssh.MarshalAuthorizedKey(cert))
}

func expired(c *ssh.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Minute).Unix()) }

func TestLoginByCertificate(t *testing.T) {
	authority, _ := sshtest.NewKey(t)
	s := certificatesOnly(t, authority)
	for kind, private := range hostKeys(t) {
		t.Run(kind, func(t *testing.T) {
			file, signer := keyFile(t, private)
			cert := write(t, "id-cert.pub", userCert(t, s, authority, signer.PublicKey(), nil))
			key, err := login.KeyFile(file)
			require.NoError(t, err)
			cfg := config(s)
			cfg.Auth = []login.Auth{key}
			_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
			requireStage(t, err, "login", true)
			cfg.Auth[0], err = key.WithCertificate(cert)
			require.NoError(t, err)
			dialWith(t, s, cfg)

			ring := agent.NewKeyring()
			require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: private}))
			byAgent, err := login.Agent(sshtest.ServeAgent(t, ring))
			require.NoError(t, err)
			cfg.Auth[0], err = byAgent.WithCertificate(cert)
			require.NoError(t, err)
			dialWith(t, s, cfg)
		})
	}
}

// Certificates live for minutes, and another program renews them in place.
func TestCertificateIsReadForEachLogin(t *testing.T) {
	authority, _ := sshtest.NewKey(t)
	s := certificatesOnly(t, authority)
	_, private := sshtest.NewKey(t)
	file, signer := keyFile(t, &private)
	cert := write(t, "id-cert.pub", userCert(t, s, authority, signer.PublicKey(), expired))
	key, err := login.KeyFile(file)
	require.NoError(t, err)
	key, err = key.WithCertificate(cert)
	require.NoError(t, err)
	cfg := config(s)
	cfg.Auth = []login.Auth{key}
	_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
	requireStage(t, err, "login", true)
	require.ErrorContains(t, err, "expired at ")
	require.ErrorContains(t, err, "get a new one")
	require.NoError(t, os.WriteFile(cert, []byte(userCert(t, s, authority, signer.PublicKey(), nil)), 0o600))
	dialWith(t, s, cfg)

	stranger, _ := sshtest.NewKey(t)
	require.NoError(t, os.WriteFile(cert, []byte(userCert(t, s, authority, stranger.PublicKey(), nil)), 0o600))
	_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
	require.ErrorContains(t, err, "it is for another key")
}

func TestWrongCertificateFileIsAnErrorAtOnce(t *testing.T) {
	signer, _ := sshtest.NewKey(t)
	key := login.Key("k", signer)
	host := certify(t, signer, signer.PublicKey(), ssh.HostCert, nil)
	for want, text := range map[string]string{
		"plain ssh-ed25519 key": string(ssh.MarshalAuthorizedKey(signer.PublicKey())),
		"certificate of a host": string(ssh.MarshalAuthorizedKey(host)),
		"no key found":          "garbage",
	} {
		_, err := key.WithCertificate(write(t, "cert", text))
		require.ErrorContains(t, err, want)
	}
	_, err := key.WithCertificate(t.TempDir())
	require.ErrorContains(t, err, "directory")
	_, err = login.Password("x").WithCertificate("file")
	require.ErrorContains(t, err, "a password cannot have one")
}

// Keys from Credentials may expire.
func TestCredentialsIsCalledAtEachDial(t *testing.T) {
	authority, _ := sshtest.NewKey(t)
	s := certificatesOnly(t, authority)
	asked := 0
	cfg := config(s)
	cfg.Auth = nil
	cfg.Credentials = func(context.Context) ([]login.Auth, error) {
		asked++
		_, private := sshtest.NewKey(t)
		block, err := ssh.MarshalPrivateKey(&private, "")
		require.NoError(t, err)
		signer, err := ssh.NewSignerFromKey(private)
		require.NoError(t, err)
		id, err := login.ParseIdentity(
			"the issuer", []byte(string(pem.EncodeToMemory(block))+userCert(t, s, authority, signer.PublicKey(), nil)),
		)
		return []login.Auth{id}, err
	}
	dialWith(t, s, cfg)
	dialWith(t, s, cfg)
	require.Equal(t, 2, asked)

	cfg.Credentials = func(context.Context) ([]login.Auth, error) { return nil, errors.New("the issuer is down") }
	_, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
	requireStage(t, err, "prepare", false)
	require.ErrorContains(t, err, "get credentials: the issuer is down")
	cfg.Credentials = func(context.Context) ([]login.Auth, error) { return nil, nil }
	_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
	require.ErrorContains(t, err, "no key and no password was found")

	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("because")
	cfg.Credentials = func(ctx context.Context) ([]login.Auth, error) {
		cancel(because)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_, err = mux.Dial(ctx, s.Addr, cfg)
	require.ErrorIs(t, err, because)
}

func TestWrongIdentityIsAnError(t *testing.T) {
	signer, private := sshtest.NewKey(t)
	other, _ := sshtest.NewKey(t)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	key := string(pem.EncodeToMemory(block))
	foreign := certify(t, signer, other.PublicKey(), ssh.UserCert, nil)
	old := certify(t, signer, signer.PublicKey(), ssh.UserCert, expired)
	for want, text := range map[string]string{
		"want the private key": string(ssh.MarshalAuthorizedKey(old)),
		"different public key": key + string(ssh.MarshalAuthorizedKey(foreign)),
		"expired":              key + string(ssh.MarshalAuthorizedKey(old)),
		"no key found":         key + "ssh-ed25519-cert-v01@openssh.com nonsense",
	} {
		_, err := login.ParseIdentity("the issuer", []byte(text))
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "identity of the issuer")
	}
}

func TestKeyFileThatOthersMayReadIsRefused(t *testing.T) {
	_, private := sshtest.NewKey(t)
	file, _ := keyFile(t, &private)
	require.NoError(t, os.Chmod(file, 0o644))
	_, err := login.KeyFile(file)
	require.ErrorContains(t, err, "others on this machine may read it (mode 0644): chmod 600")
	_, err = login.KeyFile(t.TempDir())
	require.ErrorContains(t, err, "is a directory")
}

func TestKeyFileWithAPassphrase(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	text, err := os.ReadFile(s.IdentityFile)
	require.NoError(t, err)
	file := write(t, "locked", string(text))
	sshtest.Lock(t, file, "secret")

	_, err = login.KeyFile(file)
	missing := (*ssh.PassphraseMissingError)(nil)
	require.ErrorAs(t, err, &missing)
	require.ErrorContains(t, err, "load it into ssh-agent")
	_, err = login.LockedKeyFile(file, []byte("wrong"))
	require.ErrorContains(t, err, "the passphrase does not open it")
	_, err = login.LockedKeyFile(file, nil)
	require.ErrorContains(t, err, "empty")
	key, err := login.LockedKeyFile(file, []byte("secret"))
	require.NoError(t, err)
	cfg := config(s)
	cfg.Auth = []login.Auth{key}
	dialWith(t, s, cfg)
}

// A server counts attempts (MaxAuthTries); an agent may have many keys.
func TestOnlyTheNamedKeysOfAnAgentAreTried(t *testing.T) {
	s := sshtest.OpenSSH(t, "MaxAuthTries 2")
	ring := agent.NewKeyring()
	for range 8 {
		_, private := sshtest.NewKey(t)
		require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: private}))
	}
	text, err := os.ReadFile(s.IdentityFile)
	require.NoError(t, err)
	private, err := ssh.ParseRawPrivateKey(text)
	require.NoError(t, err)
	require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: private}))
	socket := sshtest.ServeAgent(t, ring)
	cfg := config(s)
	byAgent, err := login.Agent(socket)
	require.NoError(t, err)
	cfg.Auth = []login.Auth{byAgent}
	_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
	require.Error(t, err)
	byAgent, err = login.Agent(socket, s.Signer.PublicKey())
	require.NoError(t, err)
	cfg.Auth = []login.Auth{byAgent}
	dialWith(t, s, cfg)

	stranger, _ := sshtest.NewKey(t)
	byAgent, err = login.Agent(socket, stranger.PublicKey())
	require.NoError(t, err)
	cfg.Auth = []login.Auth{byAgent}
	_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
	requireStage(t, err, "login", true)
	require.ErrorContains(t, err, "ssh-add -l")
}

func TestAgentThatIsGoneOrHangsIsAClearError(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	cfg := config(s)
	gone := filepath.Join(sshtest.SocketDir(t), "gone")
	byAgent, err := login.Agent(gone)
	require.NoError(t, err)
	cfg.Auth = []login.Auth{byAgent}
	_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
	requireStage(t, err, "login", true)
	require.ErrorContains(t, err, gone)
	require.ErrorContains(t, err, "no key to log in with")
	_, err = login.Agent("")
	require.ErrorContains(t, err, "SSH_AUTH_SOCK")

	hangs := filepath.Join(sshtest.SocketDir(t), "hangs")
	ln, err := net.Listen("unix", hangs) // never accepts
	require.NoError(t, err)
	defer ln.Close()
	byAgent, err = login.Agent(hangs)
	require.NoError(t, err)
	cfg.Auth = []login.Auth{byAgent}
	ctx, cancel := context.WithCancelCause(t.Context())
	because := fmt.Errorf("because: %w", context.DeadlineExceeded)
	done := inBackground(func() error {
		_, err := mux.Dial(ctx, s.Addr, cfg)
		return err
	})
	nc, err := ln.Accept() // the dial waits for the agent
	require.NoError(t, err)
	defer nc.Close()
	cancel(because)
	err = receive(t, done)
	require.ErrorIs(t, err, because)
	require.ErrorContains(t, err, "does an agent wait for its user?") // it asked for the address and a firewall

	login.SetAgentTime(t, 50*time.Millisecond)
	_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
	requireStage(t, err, "login", true)
	require.ErrorContains(t, err, "no answer within 50ms")
}

func TestRSAKeysSignWithSHA2AlsoFromAnAgent(t *testing.T) {
	private := rsaKey(t)
	_, signer := keyFile(t, private)
	s := sshtest.OpenSSH(
		t, "AuthorizedKeysFile "+write(t, "authorized_keys", string(ssh.MarshalAuthorizedKey(signer.PublicKey()))),
	)
	ring := agent.NewKeyring()
	require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: private}))
	byAgent, err := login.Agent(sshtest.ServeAgent(t, ring))
	require.NoError(t, err)
	cfg := config(s)
	for _, way := range []login.Auth{byAgent, login.Key("rsa", signer)} {
		cfg.Auth = []login.Auth{way}
		dialWith(t, s, cfg)
	}
}

func TestKeyFileErrorNamesTheReason(t *testing.T) {
	dir := t.TempDir()
	_, private := sshtest.NewKey(t)
	plain, _ := keyFile(t, &private)
	sshtest.Lock(t, plain, "secret")
	locked, err := os.ReadFile(plain)
	require.NoError(t, err)
	for want, content := range map[string]string{
		"the key has a passphrase": string(locked),
		"not the .pub file":        "ssh-ed25519 AAAA me@here",
		"not a private key":        string(make([]byte, 100<<10)),
	} {
		path := filepath.Join(dir, "key")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := login.KeyFile(path)
		require.ErrorContains(t, err, want)
	}
	_, err = login.KeyFile(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestDialByAgentTriesItsKeysBesidesOthers(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	stranger, private := sshtest.NewKey(t)
	authorized := s.Signer
	ring := agent.NewKeyring()
	require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: private}))
	socket := sshtest.ServeAgent(t, ring)

	byAgent, err := login.Agent(socket)
	require.NoError(t, err)
	cfg := config(s)
	cfg.Auth = []login.Auth{byAgent}
	_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
	requireStage(t, err, "login", true)

	other := sshtest.InProcess(t, embeddedvm.Config{AuthorizedKeys: []ssh.PublicKey{stranger.PublicKey()}})
	cfg = config(other)
	cfg.Auth = []login.Auth{login.Key("unknown", authorized), byAgent}
	dialWith(t, other, cfg)

	// Without the agent, the key is still tried.
	noAgent, err := login.Agent(filepath.Join(t.TempDir(), "none"))
	require.NoError(t, err)
	cfg = config(s)
	cfg.Auth = append([]login.Auth{noAgent}, cfg.Auth...)
	dialWith(t, s, cfg)
}

// tokenSigner is a Signer whose values cannot be compared.
type tokenSigner struct {
	ssh.Signer
	_ []int
}

// Symptom: a Signer of an embedding program ended it by a panic, "comparing uncomparable type".
func TestASignerNeedNotBeComparable(t *testing.T) {
	s := sshtest.OpenSSH(t)
	cfg := config(s)
	cfg.AllowSHA1, cfg.Auth = true, []login.Auth{login.Key("token", tokenSigner{Signer: s.Signer})}
	dialWith(t, s, cfg)
}
