package sshtarget

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/subprocess"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux/login"
)

// way returns a target's name and those of the hosts on the way to it.
func way(t *Target) string {
	s := t.Name
	for t = t.Jump; t != nil; t = t.Jump {
		s += " <- " + t.Name
	}
	return s
}

const jumps = `
IdentityFile ~/.ssh/id
User ci
Host vm
  ProxyJump b2
Host b2
  ProxyJump b1
Host list
  ProxyJump b2,other
Host self
  ProxyJump self
Host x
  ProxyJump y
Host y
  ProxyJump z
Host z
  ProxyJump x
`

// onEvaluators runs test with each evaluator of a configuration file.
func onEvaluators(t *testing.T, config string, test func(t *testing.T, file string)) {
	for name, evaluate := range evaluators {
		t.Run(name, func(t *testing.T) {
			evaluate(t, "") // sets up HOME and PATH
			id := filepath.Join(t.TempDir(), "id")
			key(t, id, "")
			test(t, put(t, filepath.Join(t.TempDir(), "config"), strings.Replace(config, "~/.ssh/id", id, 1)))
		})
	}
}

func TestJumpHostsOfSSHConfig(t *testing.T) {
	onEvaluators(t, jumps, func(t *testing.T, file string) {
		for text, want := range map[string]string{
			"vm":   "vm <- ci@b2:22 via ci@b1:22 <- ci@b1:22",
			"list": "list <- ci@other:22 via ci@b2:22 via ci@b1:22 <- ci@b2:22 via ci@b1:22 <- ci@b1:22",
			"b1":   "b1",
		} {
			target, err := resolver(t, ResolverConfig{SSHConfig: file}).Target(t.Context(), Host{Place: text})
			require.NoError(t, err)
			require.Equal(t, want, way(target))
		}
		target, err := resolver(t, ResolverConfig{SSHConfig: file}).Target(t.Context(), Host{ID: "i-1", Place: "vm"})
		require.NoError(t, err)
		require.Equal(t, "i-1 <- ci@b2:22 via ci@b1:22 <- ci@b1:22", way(target))
		require.Equal(t, "i-1", target.SSH.MachineID)
	})
}

func TestURLDoesNotUseSSHConfig(t *testing.T) {
	h := home(t, jumps)
	key(t, filepath.Join(h, ".ssh", "id_ed25519"), "")
	target, err := resolver(t, ResolverConfig{}).Target(t.Context(), Host{Place: "ssh://vm"})
	require.NoError(t, err)
	require.Equal(t, "vm:22", way(target))
}

func TestJumpFlagGoesBeforeSSHConfig(t *testing.T) {
	h := home(t, jumps)
	key(t, filepath.Join(h, ".ssh", "id"), "")
	for _, c := range []struct{ flag, text, want string }{
		{"none", "vm", "vm"},
		{"b1", "vm", "vm <- ci@b1:22"},
		{"b2", "vm", "vm <- ci@b2:22 via ci@b1:22 <- ci@b1:22"},
		{"me@a:1,b", "vm", "vm <- ci@b:22 via me@a:1 <- me@a:1"},
		{"a,b", "b", "b <- ci@a:22"}, // the jump hosts may be VMs themselves
		{"a,b", "a", "a"},
	} {
		target, err := resolver(t, ResolverConfig{Jump: c.flag}).Target(t.Context(), Host{Place: c.text})
		require.NoError(t, err)
		require.Equal(t, c.want, way(target))
	}
}

// Networks behind different bastions may use the same addresses: a jump host is its address and the way there.
func TestJumpHostsAreNamedByTheWayThere(t *testing.T) {
	h := home(t, jumps)
	key(t, filepath.Join(h, ".ssh", "id"), "")
	name := func(jump string) string {
		target, err := resolver(t, ResolverConfig{Jump: jump}).Target(t.Context(), Host{Place: "vm"})
		require.NoError(t, err)
		return target.Jump.Name
	}
	require.NotEqual(t, name("a,10.0.0.5"), name("b,10.0.0.5"))
	require.NotEqual(t, name("a,me@10.0.0.5"), name("a,10.0.0.5"))
	require.Equal(t, name("a,10.0.0.5"), name("a,10.0.0.5"))
}

// A machine's own settings override the operator's settings for all machines, and ssh_config.
func TestSettingsOfAMachineGoFirst(t *testing.T) {
	h := home(t, jumps)
	key(t, filepath.Join(h, ".ssh", "id"), "")
	_, public := key(t, filepath.Join(h, "own"), "")
	r := resolver(t, ResolverConfig{Jump: "a", Policies: policies(t, "insecure")})
	own, err := r.KeyFile(t.Context(), filepath.Join(h, "own"))
	require.NoError(t, err)
	pinned := login.PinnedHostKeys(public)
	m := Host{Place: "vm", User: "me", Auth: []login.Auth{own}, HostKeys: &pinned}
	target, err := r.Target(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, "vm <- ci@a:22", way(target))
	require.Equal(t, "me", target.SSH.User)
	require.Equal(t, []string{own.String()}, waysOf(target))
	require.Equal(t, pinned, target.SSH.HostKeys)
	require.NotEqual(t, waysOf(target), waysOf(target.Jump), "the jump host has its own")

	m.Jump, m.JumpUser, m.JumpAuth = "b1", "jump", []login.Auth{own}
	target, err = r.Target(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, "vm <- jump@b1:22", way(target))
	require.Equal(t, waysOf(target), waysOf(target.Jump))
	m.Jump = "you@b1"
	target, err = r.Target(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, "vm <- you@b1:22", way(target))
	m.Jump = "none"
	target, err = r.Target(t.Context(), m)
	require.NoError(t, err)
	require.Nil(t, target.Jump)
}

func TestLoopsOfJumpHostsAreFound(t *testing.T) {
	onEvaluators(t, jumps+"Host *.deep\n  ProxyJump x%n\n", func(t *testing.T, file string) {
		for text, want := range map[string]string{
			"self": "form a loop: self -> self (set ProxyJump none",
			"x":    "form a loop: x -> y -> z -> x",
		} {
			_, err := resolver(t, ResolverConfig{SSHConfig: file}).Target(t.Context(), Host{Place: text})
			require.ErrorContains(t, err, want)
		}
		r := resolver(t, ResolverConfig{SSHConfig: file, Jump: "a,b,c,d,e,f,g,h,i"})
		_, err := r.Target(t.Context(), Host{Place: "vm"})
		require.ErrorContains(t, err, "more than 8")
		r = resolver(t, ResolverConfig{SSHConfig: file, Jump: "http://a"})
		_, err = r.Target(t.Context(), Host{Place: "vm"})
		require.ErrorContains(t, err, "--jump: ")
	})
}

func TestIdentitiesThatSSHConfigNames(t *testing.T) {
	h := home(t, "")
	dir := filepath.Join(h, ".ssh")
	inFile, _ := key(t, filepath.Join(dir, "file"), "")
	locked, lockedPublic := key(t, filepath.Join(dir, "locked"), "secret")
	_, _ = inFile, lockedPublic
	held, _ := key(t, filepath.Join(dir, "held"), "")
	require.NoError(t, os.Remove(filepath.Join(dir, "held"))) // only its public half is here
	key(t, filepath.Join(dir, "open"), "")
	require.NoError(t, os.Chmod(filepath.Join(dir, "open"), 0o644))
	socket := serveAgent(t, locked, held)
	file := "key " + filepath.Join(dir, "file")
	agent := "agent " + socket
	for _, c := range []struct {
		config, agent string
		want          []string
		err           string
	}{
		{"IdentityFile ~/.ssh/file", "", []string{file}, ""},
		{"IdentityFile ~/.ssh/file", socket, []string{file, agent}, ""},
		{"IdentityFile ~/.ssh/file\nIdentitiesOnly yes", socket, []string{file}, ""},
		{"IdentityFile ~/.ssh/locked\nIdentitiesOnly yes", socket, []string{agent}, ""},
		{"IdentityFile ~/.ssh/held\nIdentitiesOnly yes", socket, []string{agent}, ""},
		{"IdentityFile ~/.ssh/held.pub\nIdentitiesOnly yes", socket, []string{agent}, ""},
		{"IdentityFile ~/.ssh/locked", "", nil, "the key has a passphrase: name a command that prints it"},
		{"IdentityFile ~/.ssh/open", "", nil, "chmod 600"},
		{"IdentityFile ~/.ssh/none", "", nil, "none: no such file"},
		{"IdentityFile ~/.ssh/none", socket, []string{agent}, ""},
		{"IdentityFile ~/.ssh/none\nIdentityFile ~/.ssh/file", "", []string{file}, ""},
		{"IdentitiesOnly yes", socket, nil, "no way to log in"},
		{"", "", nil, "no way to log in: name a private key with --identity"},
		{"IdentityAgent none", socket, nil, "no way to log in"},
		{"IdentityFile none", socket, []string{agent}, ""},
		{"IdentityFile none\nIdentitiesOnly yes", socket, nil, "no way to log in"},
	} {
		put(t, filepath.Join(dir, "config"), c.config+"\n")
		t.Setenv("SSH_AUTH_SOCK", c.agent)
		target, err := resolver(t, ResolverConfig{}).Target(t.Context(), Host{Place: "vm"})
		if c.err != "" {
			require.ErrorContains(t, err, c.err, c.config)
			continue
		}
		require.NoError(t, err, c.config)
		require.Equal(t, c.want, waysOf(target), c.config)
	}
	t.Setenv("SSH_AUTH_SOCK", socket)
	key(t, filepath.Join(dir, "id_ed25519"), "")
	put(t, filepath.Join(dir, "config"), "IdentitiesOnly yes\n")
	target, err := resolver(t, ResolverConfig{}).Target(t.Context(), Host{Place: "vm"})
	require.NoError(t, err)
	require.Equal(t, []string{"key " + filepath.Join(dir, "id_ed25519")}, waysOf(target))
	target, err = resolver(
		t, ResolverConfig{Identities: []string{filepath.Join(dir, "file")}},
	).Target(t.Context(), Host{Place: "vm"})
	require.NoError(t, err)
	require.Equal(t, []string{file}, waysOf(target), "only the operator's keys are tried")
}

func TestPassphraseCommandOpensAKey(t *testing.T) {
	h := home(t, "")
	file := filepath.Join(h, "locked")
	_, public := key(t, file, "correct horse")
	vm := sshtest.InProcess(t, embeddedvm.Config{AuthorizedKeys: []ssh.PublicKey{public}})
	asked := filepath.Join(h, "asked")
	command := script(t, `echo "$1" >>`+asked+`; echo "correct horse"; echo "and the rest is not it"`)
	r := resolver(t, ResolverConfig{Identities: []string{file}, PassphraseCommand: []string{command, "%f"}})
	for range 3 {
		target, err := r.Target(t.Context(), Host{Place: "ssh://ci@" + vm.Addr})
		require.NoError(t, err)
		requireLogin(t, target)
	}
	text, err := os.ReadFile(asked)
	require.NoError(t, err)
	require.Equal(t, file+"\n", string(text), "asked once")

	for want, command := range map[string]string{
		"the passphrase does not open it":       "echo wrong",
		"the passphrase is empty":               ":",
		"exit status 4; it said: \"vault is se": "echo vault is sealed >&2; exit 4",
		"prints too much":                       "cat /dev/zero",
	} {
		r := resolver(t, ResolverConfig{Identities: []string{file}, PassphraseCommand: []string{script(t, command)}})
		_, err := r.Target(t.Context(), Host{Place: "ssh://ci@" + vm.Addr})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, file)
	}
	limit := passphraseLimit
	passphraseLimit = subprocess.Limit{Time: 100 * time.Millisecond, Bytes: limit.Bytes}
	defer func() { passphraseLimit = limit }()
	r = resolver(
		t,
		ResolverConfig{Identities: []string{file}, PassphraseCommand: []string{script(t, "exec tail -f /dev/null")}},
	)
	_, err = r.Target(t.Context(), Host{Place: "vm"})
	require.ErrorContains(t, err, "the program has not ended after 100ms")
	r = resolver(t, ResolverConfig{Identities: []string{file}, PassphraseCommand: []string{"/bin/sh", "%z"}})
	_, err = r.Target(t.Context(), Host{Place: "vm"})
	require.ErrorContains(t, err, "--passphrase-command: ")
}

// The keys of an identity command may expire: it runs for each connection, with the connection's tokens.
func TestIdentityCommandRunsForEachConnection(t *testing.T) {
	h := home(t, "")
	file := filepath.Join(h, "key")
	_, public := key(t, file, "")
	vm := sshtest.InProcess(t, embeddedvm.Config{AuthorizedKeys: []ssh.PublicKey{public}})
	asked := filepath.Join(h, "asked")
	command := script(t, `echo "$@" >>`+asked+`; cat `+file)
	r := resolver(t, ResolverConfig{IdentityCommand: []string{command, "%r@%h:%p", "%n", "%k"}})
	target, err := r.Target(t.Context(), Host{Place: "ssh://ci@" + vm.Addr})
	require.NoError(t, err)
	require.Empty(t, target.SSH.Auth)
	requireLogin(t, target)
	requireLogin(t, target)
	text, err := os.ReadFile(asked)
	require.NoError(t, err)
	line := fmt.Sprintf("ci@%s 127.0.0.1 127.0.0.1\n", vm.Addr)
	require.Equal(t, line+line, string(text))

	for want, command := range map[string]string{
		"exit status 4; it said: \"no ticket\"": "echo no ticket >&2; exit 4",
		"prints too much":                       "cat /dev/zero",
		"want the private key":                  "echo hello",
	} {
		r := resolver(t, ResolverConfig{IdentityCommand: []string{script(t, command)}})
		target, err := r.Target(t.Context(), Host{Place: "ssh://ci@" + vm.Addr})
		require.NoError(t, err)
		require.ErrorContains(t, loginError(t, target), want)
	}
	_, err = NewResolver(ResolverConfig{Policies: policies(t, "insecure"), IdentityCommand: []string{"no-such-command"}})
	require.ErrorContains(t, err, "--identity-command: ")
}

func TestPolicies(t *testing.T) {
	h := home(t, "")
	key(t, filepath.Join(h, ".ssh", "id_ed25519"), "")
	vm := sshtest.InProcess(t, embeddedvm.Config{})
	id, err := os.ReadFile(vm.IdentityFile)
	require.NoError(t, err)
	put(t, filepath.Join(h, ".ssh", "id_ed25519"), string(id))
	_, stranger := key(t, filepath.Join(h, "stranger"), "")
	line := func(k ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) }
	where := "ssh://" + vm.User + "@" + vm.Addr

	for _, c := range []struct {
		policies []string
		want     string
	}{
		{[]string{"known-hosts"}, "there is no known_hosts file of"},
		{[]string{"insecure"}, ""},
		{[]string{"pinned:vm-1=" + line(vm.HostKey)}, ""},
		{[]string{"pinned:vm-1=" + line(stranger)}, "is pinned"},
		{[]string{"pinned:vm-2=" + line(vm.HostKey)}, "no key is pinned for vm-1: add pinned:vm-1=KEY"},
		{[]string{"pinned:vm-2=" + line(stranger), "known-hosts", "insecure"}, ""},
		{[]string{"command:cat " + vm.KnownHosts}, ""},
		{[]string{"known-hosts", "first-use"}, ""},
		{[]string{"first-use:" + filepath.Join(h, "my", "file")}, ""},
	} {
		target, err := resolver(
			t, ResolverConfig{Policies: policies(t, c.policies...)},
		).Target(t.Context(), Host{ID: "vm-1", Place: where})
		if err == nil {
			err = loginError(t, target)
		}
		if c.want == "" {
			require.NoError(t, err, c.policies)
		} else {
			require.ErrorContains(t, err, c.want, c.policies)
		}
	}
	for _, file := range []string{"my/file", ".local/state/stepmux/first-use"} {
		text, err := os.ReadFile(filepath.Join(h, file))
		require.NoError(t, err)
		require.Contains(t, string(text), "vm-1 "+line(vm.HostKey))
	}
	put(t, filepath.Join(h, ".ssh", "known_hosts"), "garbage\n")
	_, err = resolver(
		t, ResolverConfig{Policies: policies(t, "known-hosts", "insecure")},
	).Target(t.Context(), Host{Place: where})
	require.ErrorContains(t, err, "known_hosts:1: ")
	require.NotContains(t, err.Error(), "ssh-keyscan", "it would replace the good lines")
	require.NotContains(t, OfFlag("--instance", err).Error(), "--instance", "the flag is not to blame")
	put(t, filepath.Join(h, ".ssh", "known_hosts"), "garbage\nvm "+line(vm.HostKey)+"\n")
	var warned []string
	_, err = resolver(t, ResolverConfig{
		Policies: policies(t, "known-hosts"), Warn: func(text string) { warned = append(warned, text) },
	}).Target(t.Context(), Host{Place: where})
	require.NoError(t, err)
	require.Len(t, warned, 1)
	require.Contains(t, warned[0], "known_hosts:1: ")
	target, err := resolver(
		t, ResolverConfig{Policies: policies(t, "known-hosts"), KnownHosts: []string{vm.KnownHosts}},
	).Target(t.Context(), Host{Place: where})
	require.NoError(t, err)
	requireLogin(t, target)
	put(
		t, filepath.Join(h, ".ssh", "config"),
		"UserKnownHostsFile "+vm.KnownHosts+" ~/missing\n"+
			"Host vm\n HostName 127.0.0.1\n User "+vm.User+"\n Port "+vm.Addr[strings.LastIndexByte(vm.Addr, ':')+1:]+"\n",
	)
	target, err = resolver(
		t, ResolverConfig{Policies: policies(t, "known-hosts")},
	).Target(t.Context(), Host{Place: "vm"})
	require.NoError(t, err)
	requireLogin(t, target)
}

func TestInvalidPoliciesAreRefused(t *testing.T) {
	home(t, "")
	for text, want := range map[string]string{
		"":                      "use known-hosts",
		"ask":                   "use known-hosts",
		"known-hosts:x":         "use known-hosts",
		"insecure:really":       "use known-hosts",
		"pinned":                "use known-hosts",
		"pinned:vm-1":           "want pinned:ID=KEY",
		"pinned:vm-1=nonsense":  "want a public key",
		"command:":              "empty",
		"command:/no/such/file": "no such file",
		"command:cat %z":        "no %z",
		"first-use:/dev/null/x": "not a directory",
	} {
		_, err := ParsePolicy(text)
		require.ErrorContains(t, err, want, text)
	}
	require.True(t, policies(t, "insecure")[0].Insecure())
	require.False(t, policies(t, "first-use")[0].Insecure())
	_, err := NewResolver(ResolverConfig{})
	require.ErrorContains(t, err, "no policy")
}

func TestCertificatesThatSSHConfigNames(t *testing.T) {
	h := home(
		t,
		"IdentityFile ~/.ssh/a\nIdentityFile ~/.ssh/b\nCertificateFile ~/.ssh/mine.crt\nCertificateFile ~/missing\n",
	)
	key(t, filepath.Join(h, ".ssh", "a"), "")
	b, _ := key(t, filepath.Join(h, ".ssh", "b"), "")
	authority, _ := key(t, filepath.Join(h, "ca"), "")
	caSigner, err := ssh.NewSignerFromSigner(authority)
	require.NoError(t, err)
	ca := put(t, filepath.Join(h, "ca.pub"), string(ssh.MarshalAuthorizedKey(caSigner.PublicKey())))
	vm := sshtest.OpenSSH(t, "TrustedUserCAKeys "+ca, "AuthorizedKeysFile none")
	signer, err := ssh.NewSignerFromSigner(b)
	require.NoError(t, err)
	cert := &ssh.Certificate{
		Key:             signer.PublicKey(),
		CertType:        ssh.UserCert,
		ValidPrincipals: []string{vm.User},
		ValidBefore:     ssh.CertTimeInfinity,
	}
	require.NoError(t, cert.SignCert(randomReader{}, caSigner))
	port := vm.Addr[strings.LastIndexByte(vm.Addr, ':')+1:]
	for _, file := range []string{"mine.crt", "b-cert.pub"} {
		path := put(t, filepath.Join(h, ".ssh", file), string(ssh.MarshalAuthorizedKey(cert)))
		target, err := resolver(t, ResolverConfig{}).Target(t.Context(), Host{Place: vm.User + "@127.0.0.1:" + port})
		require.NoError(t, err)
		requireLogin(t, target)
		require.NoError(t, os.Remove(path))
	}
	target, err := resolver(t, ResolverConfig{}).Target(t.Context(), Host{Place: vm.User + "@127.0.0.1:" + port})
	require.NoError(t, err)
	require.Error(t, loginError(t, target))
	put(t, filepath.Join(h, ".ssh", "mine.crt"), "nonsense")
	_, err = resolver(t, ResolverConfig{}).Target(t.Context(), Host{Place: "vm"})
	require.ErrorContains(t, err, "CertificateFile")
}

// randomReader is not random.
type randomReader struct{}

func (randomReader) Read(p []byte) (int, error) { return len(p), nil }

func TestCommandsEndWithTheContext(t *testing.T) {
	h := home(t, "")
	file := filepath.Join(h, "locked")
	key(t, file, "secret")
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("because")
	cancel(because)
	r := resolver(
		t,
		ResolverConfig{Identities: []string{file}, PassphraseCommand: []string{script(t, "exec tail -f /dev/null")}},
	)
	_, err := r.Target(ctx, Host{Place: "vm"})
	require.ErrorIs(t, err, because)
}
