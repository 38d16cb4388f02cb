package login_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skeema/knownhosts"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	sshknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// write writes a file that only its owner can read.
func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// hostLine returns a line of known_hosts.
func hostLine(marker, hosts string, key ssh.PublicKey) string {
	return strings.TrimSpace(marker+" "+hosts+" "+string(ssh.MarshalAuthorizedKey(key))) + "\n"
}

func known(t testing.TB, lines ...string) login.HostKeys {
	t.Helper()
	keys, err := login.KnownHosts(write(t, "known_hosts", strings.Join(lines, "")))
	require.NoError(t, err)
	return keys
}

// dialError dials s with these host keys and returns the error.
func dialError(t testing.TB, s *sshtest.Server, keys login.HostKeys) error {
	t.Helper()
	cfg := config(s)
	cfg.HostKeys = keys
	conn, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
	if err == nil {
		require.NoError(t, conn.Close())
	}
	return err
}

func TestFirstAnswerOfTheChainCounts(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	name := knownhosts.Normalize(s.Addr)
	right, stranger := s.HostKey, func() ssh.PublicKey { k, _ := sshtest.NewKey(t); return k.PublicKey() }()
	accept, refuse := login.PinnedHostKeys(right), login.PinnedHostKeys(stranger)
	lists, listsOther, empty := known(t, hostLine("", name, right)), known(t, hostLine("", name, stranger)), known(t)
	revokes := known(t, hostLine("@revoked", "*", right))
	insecure := login.InsecureHostKeys()
	for name, c := range map[string]struct {
		keys login.HostKeys
		want string // of the error, empty if it is accepted
	}{
		"pinned":                        {accept, ""},
		"another one is pinned":         {refuse, "is pinned"},
		"no key is pinned":              {login.PinnedHostKeys(), "no key is pinned"},
		"an answer ends the chain":      {login.FirstOf(refuse, accept, insecure), "is pinned"},
		"also if it accepts":            {login.FirstOf(accept, refuse, listsOther), ""},
		"a rule without an answer":      {login.FirstOf(login.PinnedHostKeys(), empty, lists, refuse), ""},
		"the last rule accepts":         {login.FirstOf(empty, insecure), ""},
		"no rule has an answer":         {login.FirstOf(login.PinnedHostKeys(), empty), "add the line"},
		"a changed key is an answer":    {login.FirstOf(listsOther, insecure), "HOST KEY CHANGED"},
		"a revoked key is never right":  {login.FirstOf(accept, lists, insecure, revokes), "revoked"},
		"a chain of chains":             {login.FirstOf(login.FirstOf(empty), login.FirstOf(lists)), ""},
		"insecure takes any":            {insecure, ""},
		"two may be pinned":             {login.PinnedHostKeys(stranger, right), ""},
		"two lines of which one fits":   {known(t, hostLine("", name, stranger), hostLine("", name, right)), ""},
		"a pattern":                     {known(t, hostLine("", "*", right)), ""},
		"a pattern for another machine": {known(t, hostLine("", "*", stranger)), "HOST KEY CHANGED"},
	} {
		t.Run(name, func(t *testing.T) {
			err := dialError(t, s, c.keys)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			requireStage(t, err, "host key", true)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, ssh.FingerprintSHA256(right), "the key to compare with")
		})
	}
}

func TestHostKeyAliasIsLookedUpInsteadOfTheAddress(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	cfg := config(s)
	cfg.HostKeys, cfg.HostKeyAlias = known(t, hostLine("", "the-vm", s.HostKey)), "the-vm"
	dialWith(t, s, cfg)
}

// A line that is added while the program runs applies to the next connection.
func TestKnownHostsAreReadForEachConnection(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	file := write(t, "known_hosts", "")
	keys, err := login.KnownHosts(file)
	require.NoError(t, err)
	requireStage(t, dialError(t, s, keys), "host key", true)
	require.NoError(t, os.WriteFile(file, []byte(hostLine("", knownhosts.Normalize(s.Addr), s.HostKey)), 0o600))
	require.NoError(t, dialError(t, s, keys))
	require.NoError(t, os.WriteFile(file, []byte("garbage\n"), 0o600))
	requireStage(t, dialError(t, s, keys), "prepare", false)
}

func TestBadKnownHostsAreAnErrorWithFileAndLine(t *testing.T) {
	_, err := login.KnownHosts(t.TempDir())
	require.ErrorContains(t, err, "is a directory")
	good, _ := sshtest.NewKey(t)
	for _, bad := range []string{
		"@revoked * ssh-rsa AAAA\n",
		"@cert-authority *\n",
		// Symptom: such a line was passed over without a word, so that a key was not revoked.
		hostLine("@revoke", "*", good.PublicKey()),
		hostLine("@Revoked", "*", good.PublicKey()),
		hostLine("@revoked @revoked", "*", good.PublicKey()),
		strings.Replace(hostLine("@revoked", "*", good.PublicKey()), "ssh-ed25519", "ssh-ed2551", 1),
		"vm " + strings.Repeat("A", 64<<10) + "\n", // the library ends there
	} {
		_, err := login.KnownHosts(write(t, "known_hosts", hostLine("", "vm", good.PublicKey())+"\n"+bad))
		require.ErrorContains(t, err, "known_hosts:3: ", bad)
		require.ErrorContains(t, err, "(correct or remove the line)", bad)
	}
	_, err = login.KnownHosts(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = login.KnownHosts(os.DevNull)
	require.NoError(t, err)
}

// Symptom: one such line about another host refused every VM. ssh passes it over.
func TestALineOfKnownHostsThatCannotBeReadIsPassedOverAsBySSH(t *testing.T) {
	s, good := sshtest.InProcess(t, embeddedvm.Config{}), ""
	good = hostLine("", knownhosts.Normalize(s.Addr), s.HostKey)
	for _, bad := range []string{
		"vm ssh-ed25519 nonsense\n",
		"vm and nonsense\n",
		"onlyhost\n",
		"old.example.com 1024 35 12345678901234567890\n", // a key of SSH 1
		"127.0.0.1: Connection refused\n",                // of an ssh-keyscan
		strings.Replace(hostLine("", "vm", s.HostKey), "ssh-ed25519", "ssh-ed2551", 1),
		hostLine("@foo", "*", s.HostKey),
		hostLine("", "[vm]22", s.HostKey),
		hostLine("", "|1|salt", s.HostKey),
		hostLine("", "|1|c2FsdA==|!", s.HostKey),
	} {
		keys := known(t, bad, good)
		require.NoError(t, dialError(t, s, keys), bad)
		require.NoError(t, dialError(t, s, command(t, "echo '"+strings.TrimSpace(bad)+"'; echo '"+
			strings.TrimSpace(good)+"'")), bad)
		require.Len(t, keys.Warnings(), 1, bad)
		require.Regexp(t, `^passed over .*known_hosts:1: not a host and its key: .*\(correct or remove the line\)$`,
			keys.Warnings()[0])
		require.NotContains(t, keys.Warnings()[0], "EOF")
		require.ErrorContains(t, dialError(t, s, known(t, hostLine("", "vm", s.HostKey), bad)), "known_hosts:2: not a host",
			"the line may be that of the VM")
		_, err := login.KnownHosts(write(t, "known_hosts", bad))
		require.ErrorContains(t, err, "known_hosts:1: ", "no line can be read")
		sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh")
		_, port, err := net.SplitHostPort(s.Addr)
		require.NoError(t, err)
		out, err := exec.Command("ssh", "-F", "none", "-p", port, "-o", "BatchMode=yes", "-i", s.IdentityFile,
			"-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "GlobalKnownHostsFile=none",
			"-o", "UserKnownHostsFile="+write(t, "known_hosts", bad+good), "-o", "StrictHostKeyChecking=yes",
			s.User+"@127.0.0.1", "exit 0").CombinedOutput()
		require.NoError(t, err, "ssh: %s: %s", bad, out)
	}
	require.Contains(t, known(t, strings.Repeat("no\n", 10), good).Warnings(), "passed over 7 more such lines")
}

// Symptom: a file that had no other keys was an error.
func TestKnownHostsMayHaveKeysThatCannotBeUsed(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	old := "# old\nvm ssh-dss AAAAB3NzaC1kc3M= root@vm\n\n" +
		"@revoked * ssh-xmss@openssh.com AAAAFHNzaC14bXNzQG9wZW5zc2guY29t\n"
	keys := known(t, old, hostLine("", knownhosts.Normalize(s.Addr), s.HostKey))
	require.NoError(t, dialError(t, s, keys))
	requireStage(t, dialError(t, s, known(t, old)), "host key", true)
}

// hostKeys returns a key of each type that an sshd has.
func hostKeys(t testing.TB) map[string]any {
	t.Helper()
	_, ed := sshtest.NewKey(t)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return map[string]any{ssh.KeyAlgoED25519: &ed, ssh.KeyAlgoECDSA256: ec, ssh.KeyAlgoRSA: rsaKey(t)}
}

// keyFile writes a private key as ssh-keygen does.
func keyFile(t testing.TB, key any) (path string, signer ssh.Signer) {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(t, err)
	signer, err = ssh.NewSignerFromKey(key)
	require.NoError(t, err)
	return write(t, "key", string(pem.EncodeToMemory(block))), signer
}

// A server with keys of several types shows the known one.
func TestServerIsAskedForTheTypeOfTheKnownKey(t *testing.T) {
	var lines []string
	signers := map[string]ssh.Signer{}
	for kind, key := range hostKeys(t) {
		file, signer := keyFile(t, key)
		lines = append(lines, "HostKey "+file)
		signers[kind] = signer
	}
	s := sshtest.OpenSSH(t, lines...)
	name := knownhosts.Normalize(s.Addr)
	for kind, signer := range signers {
		t.Run(kind, func(t *testing.T) {
			require.NoError(t, dialError(t, s, login.PinnedHostKeys(signer.PublicKey())))
			require.NoError(t, dialError(t, s, known(t, hostLine("", name, signer.PublicKey()))))
			store := filepath.Join(t.TempDir(), "store")
			line := hostLine("", "i-1", signer.PublicKey())
			require.NoError(t, os.WriteFile(store, []byte(line), 0o600))
			first, err := login.FirstUse(store)
			require.NoError(t, err)
			cfg := config(s)
			cfg.HostKeys, cfg.MachineID = first, "i-1"
			dialWith(t, s, cfg)
		})
	}
}

// certify returns key's certificate by authority, changed by change.
func certify(
	t testing.TB, authority ssh.Signer, key ssh.PublicKey, kind uint32, change func(*ssh.Certificate),
) *ssh.Certificate {
	t.Helper()
	cert := &ssh.Certificate{
		Key: key, CertType: kind, KeyId: "of the test", ValidPrincipals: []string{"127.0.0.1"},
		ValidBefore: uint64(time.Now().Add(time.Hour).Unix()),
	}
	if change != nil {
		change(cert)
	}
	require.NoError(t, cert.SignCert(rand.Reader, authority))
	return cert
}

// certified starts a real sshd with a host certificate.
func certified(t testing.TB, authority ssh.Signer, change func(*ssh.Certificate)) (*sshtest.Server, ssh.PublicKey) {
	t.Helper()
	_, private := sshtest.NewKey(t)
	file, host := keyFile(t, &private)
	cert := certify(t, authority, host.PublicKey(), ssh.HostCert, change)
	path := write(t, "host-cert.pub", string(ssh.MarshalAuthorizedKey(cert)))
	return sshtest.OpenSSH(t, "HostKey "+file, "HostCertificate "+path), host.PublicKey()
}

func TestCertificateOfAKnownAuthorityIsAccepted(t *testing.T) {
	authority, _ := sshtest.NewKey(t)
	s, host := certified(t, authority, nil)
	ca := hostLine("@cert-authority", "*", authority.PublicKey())
	require.NoError(t, dialError(t, s, known(t, ca)))
	require.NoError(
		t,
		dialError(t, s, known(t, hostLine("@cert-authority", knownhosts.Normalize(s.Addr), authority.PublicKey()))),
	)
	// A client without an authority sees the key itself.
	require.NoError(t, dialError(t, s, login.PinnedHostKeys(host)))
	require.NoError(t, dialError(t, s, login.FirstOf(known(t, ca), login.PinnedHostKeys(host))))
	require.NoError(t, dialError(t, s, login.FirstOf(login.PinnedHostKeys(host), known(t, ca))))

	stranger, _ := sshtest.NewKey(t)
	for want, lines := range map[string][]string{
		"HOST KEY CHANGED|no certificate by an authority": {hostLine("@cert-authority", "*", stranger.PublicKey())},
		"revoked key": {ca, hostLine("@revoked", "*", authority.PublicKey())},
		"revoked":     {ca, hostLine("@revoked", "*", host)},
	} {
		err := dialError(t, s, known(t, lines...))
		requireStage(t, err, "host key", true)
		require.Regexp(t, want, err.Error())
	}
}

func TestCertificateThatIsNotValidIsRefused(t *testing.T) {
	for want, change := range map[string]func(*ssh.Certificate){
		"expired":              func(c *ssh.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Minute).Unix()) },
		"principal|not in the": func(c *ssh.Certificate) { c.ValidPrincipals = []string{"vm-2"} },
	} {
		authority, _ := sshtest.NewKey(t)
		s, _ := certified(t, authority, change)
		err := dialError(
			t, s,
			login.FirstOf(known(t, hostLine("@cert-authority", "*", authority.PublicKey())), login.InsecureHostKeys()),
		)
		requireStage(t, err, "host key", true)
		require.Regexp(t, want, err.Error())
	}
}

func TestMissingCertificateIsNotReportedAsAChangedKey(t *testing.T) {
	s := sshtest.OpenSSH(t)
	authority, _ := sshtest.NewKey(t)
	err := dialError(t, s, known(t, hostLine("@cert-authority", "*", authority.PublicKey())))
	requireStage(t, err, "host key", true)
	require.ErrorContains(t, err, "is HostCertificate set")
}

// An authority's key signs for hosts. A host that shows it as its own key is refused.
func TestAuthoritysKeyIsNoHostKey(t *testing.T) {
	authority, _ := sshtest.NewKey(t)
	s := sshtest.InProcess(t, embeddedvm.Config{HostKeys: []ssh.Signer{authority}})
	err := dialError(t, s, known(t, hostLine("@cert-authority", "*", authority.PublicKey())))
	requireStage(t, err, "host key", true)
	require.ErrorContains(t, err, "key of an authority")
}

// The library checks the host key again with each new exchange of keys, long after the dial.
func TestConnectionOutlivesNewKeyExchanges(t *testing.T) {
	s := sshtest.OpenSSH(t, "RekeyLimit 64K")
	counter := filepath.Join(t.TempDir(), "asked")
	command, err := login.HostKeyCommand(script(t, fmt.Sprintf("echo x >>%s; cat %s", counter, s.KnownHosts)))
	require.NoError(t, err)
	cfg := config(s)
	cfg.HostKeys = command
	conn := dialWith(t, s, cfg)
	p := start(t, conn, "head -c 1000000 /dev/zero; exit 7")
	n := 0
	buf := make([]byte, 32<<10)
	for {
		m, err := p.Read(buf)
		n += m
		if err != nil {
			break
		}
	}
	require.Equal(t, 1000000, n)
	require.ErrorContains(t, p.Wait(sshtest.Within(t)), "exit status 7")
	asked, err := os.ReadFile(counter)
	require.NoError(t, err)
	require.Equal(t, "x\nx\n", string(asked), "for the order and the key of one dial")
}

// changingSigner is a key that becomes another with the first signature after change is set. A key exchange that is
// under way shows one key and signs with it.
type changingSigner struct {
	first, second   ssh.Signer
	change, changed atomic.Bool
}

func (s *changingSigner) now() ssh.Signer {
	if s.changed.Load() {
		return s.second
	}
	return s.first
}

func (s *changingSigner) PublicKey() ssh.PublicKey { return s.now().PublicKey() }

func (s *changingSigner) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	defer func() { s.changed.Store(s.change.Load()) }()
	return s.now().Sign(rand, data)
}

// The server's second key is accepted for a new connection, but not during one that was made with the first.
//
//stepmux:reliability mechanisms | No host key changes while a connection lives | `mux/login/hostkey.go`
func TestServerThatShowsAnotherKeyLaterIsLeft(t *testing.T) {
	first, _ := sshtest.NewKey(t)
	second, _ := sshtest.NewKey(t)
	key := &changingSigner{first: first, second: second}
	s := sshtest.InProcess(t, embeddedvm.Config{HostKeys: []ssh.Signer{key}, RekeyThreshold: 64 << 10})
	cfg := config(s)
	cfg.HostKeys = login.PinnedHostKeys(first.PublicKey(), second.PublicKey())
	conn := dialWith(t, s, cfg)
	p := start(t, conn, "head -c 200000 /dev/zero")
	_, err := io.Copy(io.Discard, p)
	require.NoError(t, err, "with the same key")

	key.change.Store(true)
	p, err = conn.Start(sshtest.Within(t), mux.Command{Line: "cat /dev/zero"})
	if err == nil { // keys may be exchanged before
		t.Cleanup(func() { p.Close() })
		_, err = io.Copy(io.Discard, p)
	}
	require.Error(t, err)
	<-conn.Done()
	require.ErrorContains(t, conn.Err(), "another key than when the connection was made")
}

func TestSHA1IsRefusedUnlessAllowed(t *testing.T) {
	for name, line := range map[string]string{
		"key exchange": "KexAlgorithms diffie-hellman-group14-sha1",
		"host key":     "HostKeyAlgorithms ssh-rsa",
		"login":        "PubkeyAcceptedAlgorithms ssh-rsa",
	} {
		t.Run(name, func(t *testing.T) {
			file, host := keyFile(t, rsaKey(t))
			keys := write(t, "authorized_keys", string(ssh.MarshalAuthorizedKey(host.PublicKey())))
			s := sshtest.OpenSSH(t, line, "HostKey "+file, "AuthorizedKeysFile "+keys)
			cfg := config(s)
			cfg.HostKeys = login.PinnedHostKeys(host.PublicKey())
			cfg.Auth = []login.Auth{login.Key("rsa", host)}
			_, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
			require.Error(t, err)
			cfg.AllowSHA1 = true
			dialWith(t, s, cfg)
		})
	}
}

// The error had neither the line nor the key that it has, and no command.
func TestAChangedKeyIsShownWithTheOldOneAndItsLine(t *testing.T) {
	s := sshtest.OpenSSH(t)
	stranger, _ := sshtest.NewKey(t)
	other, name := stranger.PublicKey(), knownhosts.Normalize(s.Addr)
	for hosts, found := range map[string]bool{name: true, "127.0.0.1," + name: true, "[127.0.0.?]:*": false, "*": false} {
		text := "# a comment\n" + hostLine("", "another", s.HostKey) + hostLine("", hosts, other)
		file := write(t, "known_hosts", text)
		keys, err := login.KnownHosts(file)
		require.NoError(t, err)
		err = dialError(t, s, keys)
		requireStage(t, err, "host key", true)
		if errNotKnown := !strings.Contains(hosts, name) && hosts != "*"; errNotKnown {
			require.ErrorContains(t, err, "add the line")
			continue
		}
		require.ErrorContains(t, err, fmt.Sprintf("HOST KEY CHANGED: %s shows %s %s, but %s:3 has %s %s: ", s.Addr,
			s.HostKey.Type(), ssh.FingerprintSHA256(s.HostKey), file, other.Type(), ssh.FingerprintSHA256(other)))
		_, command, printed := strings.Cut(err.Error(), "remove the old line: ")
		require.Equal(t, found, printed, "%v", err)
		if printed {
			sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh-keygen")
			out, err := exec.Command("sh", "-c", command).CombinedOutput()
			require.NoError(t, err, "%s", out)
			left, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NotContains(t, string(left), name)
			require.Contains(t, string(left), "another")
		}
	}
	command, err := login.HostKeyCommand(script(t, "echo '"+strings.TrimSpace(hostLine("", "*", other))+"'"))
	require.NoError(t, err)
	require.ErrorContains(t, dialError(t, s, command), ", but the output of ")
	pinned := fmt.Sprintf("the server shows %s %s, but %s %s is pinned", s.HostKey.Type(),
		ssh.FingerprintSHA256(s.HostKey), other.Type(), ssh.FingerprintSHA256(other))
	require.ErrorContains(t, dialError(t, s, login.PinnedHostKeys(other)), pinned)
}

// ssh accepts the key of a line without a port for the other ports of the host. A mismatch there says nothing.
//
//stepmux:faults users | ssh accepts what the program refuses, or reads a file differently
//stepmux:with internal/sshtarget.TestValuesThatTheLibraryMisreadsAreReadBySSHOrRefused
func TestALineWithoutAPortIsForAllPortsOfItsHostAsWithSSH(t *testing.T) {
	authority, _ := sshtest.NewKey(t)
	s, host := certified(t, authority, nil)
	for lines, accepts := range map[string]bool{
		hostLine("", "127.0.0.1", host):                                 true,
		hostLine("", sshknownhosts.HashHostname("127.0.0.1"), host):     true,
		hostLine("@cert-authority", "127.0.0.1", authority.PublicKey()): true,
		hostLine("", "127.0.0.1", authority.PublicKey()):                false,
		hostLine("", "127.0.0.2", host):                                 false,
		hostLine("", "[127.0.0.1]:1", host):                             false,
	} {
		file := write(t, "known_hosts", lines)
		keys, err := login.KnownHosts(file)
		require.NoError(t, err)
		err = dialError(t, s, keys)
		require.Equal(t, accepts, err == nil, "%s: %v", lines, err)
		if err != nil {
			require.ErrorContains(t, err, "add the line")
		}
		sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh")
		_, port, err := net.SplitHostPort(s.Addr)
		require.NoError(t, err)
		out, err := exec.Command("ssh", "-F", "none", "-p", port, "-o", "BatchMode=yes", "-i", s.IdentityFile,
			"-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "GlobalKnownHostsFile=none",
			"-o", "UserKnownHostsFile="+file, "-o", "StrictHostKeyChecking=yes", s.User+"@127.0.0.1", "exit 0").CombinedOutput()
		require.Equal(t, accepts, err == nil, "ssh: %s: %s", lines, out)
	}
}

// The hint stood behind both sides' lists of algorithms, and named all options of sshd_config.
func TestAServerWithoutACommonAlgorithmIsToldWhichOptionToSet(t *testing.T) {
	for lines, want := range map[string]string{
		"KexAlgorithms sntrup761x25519-sha512@openssh.com": `no common algorithm for key exchange: the server offers only ` +
			`"sntrup761x25519-sha512@openssh.com`,
		"Ciphers aes256-cbc": `no common algorithm for client to server cipher: the server offers only "aes256-cbc"`,
		"MACs umac-128@openssh.com,umac-64-etm@openssh.com\nCiphers aes128-ctr": `no common algorithm for client to server ` +
			`MAC: the server offers only "umac-128@openssh.com umac-64-etm@openssh.com"`,
		"MACs hmac-sha1\nCiphers aes128-ctr": "", // used with SHA-1 as a MAC
	} {
		s := sshtest.OpenSSH(t, lines)
		conn, err := mux.Dial(sshtest.Within(t), s.Addr, config(s))
		if want == "" {
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			continue
		}
		option, _, _ := strings.Cut(lines, " ")
		require.ErrorContains(t, err, "dial "+s.User+"@"+s.Addr+": handshake: "+want)
		require.ErrorContains(t, err, " (set "+option+" in its sshd_config to one of these, or upgrade it: ")
		_, ok := errors.AsType[*ssh.AlgorithmNegotiationError](err)
		require.True(t, ok)
	}
}

// The words of the SSH library stood between the machine and the cause, and a hint was behind a long cause.
func TestADialErrorSaysItsCauseAndRemedyAtOnce(t *testing.T) {
	s := sshtest.OpenSSH(t)
	stranger, _ := sshtest.NewKey(t)
	cfg := config(s)
	cfg.Auth = []login.Auth{login.Key("/keys/mine", stranger)}
	_, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
	require.EqualError(t, err, "dial "+s.User+"@"+s.Addr+": login: unable to authenticate, attempted methods [none "+
		"publickey] (the server refused key /keys/mine for user "+s.User+": is it in authorized_keys, is the user right?)")
	cause := errors.New(strings.Repeat("x", 201))
	long := &mux.DialError{Stage: "login", User: "ci", Addr: "vm:22", Hint: "do that", Err: cause}
	require.True(t, strings.HasPrefix(long.Error(), "dial ci@vm:22: login: do that: xxx"), long.Error())
}
