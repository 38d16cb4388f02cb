package login_test

import (
	"crypto/ed25519"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// address is a TCP address that one machine after the other gets.
type address struct {
	t      testing.TB
	client ssh.Signer
	vm     *embeddedvm.Server
	addr   string
}

// next replaces the machine by another with this host key.
func (p *address) next(host ssh.Signer) {
	p.t.Helper()
	if p.vm != nil {
		require.NoError(p.t, p.vm.Close())
	}
	var err error
	p.vm, err = embeddedvm.Start(embeddedvm.Config{
		Addr: p.addr, HostKeys: []ssh.Signer{host}, AuthorizedKeys: []ssh.PublicKey{p.client.PublicKey()},
	})
	require.NoError(p.t, err)
	p.addr = p.vm.Addr()
}

func (p *address) dial(keys login.HostKeys, id string, client ssh.Signer) error {
	p.t.Helper()
	conn, err := mux.Dial(sshtest.Within(p.t), p.addr, &mux.Config{
		User: "ci", Auth: []login.Auth{login.Key("of the test", client)}, HostKeys: keys, MachineID: id,
	})
	if err == nil {
		require.NoError(p.t, conn.Close())
	}
	return err
}

func newAddress(t testing.TB) *address {
	p := &address{t: t}
	p.client, _ = sshtest.NewKey(t)
	t.Cleanup(func() { p.vm.Close() })
	return p
}

func firstUse(t testing.TB) (keys login.HostKeys, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "first-use")
	keys, err := login.FirstUse(file)
	require.NoError(t, err)
	return keys, file
}

func signer(n int) ssh.Signer {
	seed := make([]byte, ed25519.SeedSize)
	copy(seed, fmt.Sprint(n))
	s, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(seed))
	if err != nil {
		panic(err)
	}
	return s
}

// Machines live for an hour, and then the next machine gets the address. There is no false alarm, the file does not
// grow for ever, and the one machine whose key changes while its identity stays is found.
func TestAThousandMachinesAtOneAddress(t *testing.T) {
	racefree.Only(t)
	t.Parallel()
	const machines, swapped = 1000, 617
	p := newAddress(t)
	keys, file := firstUse(t)
	for i := range machines {
		id := fmt.Sprintf("i-%d", i)
		p.next(signer(i))
		require.NoError(t, p.dial(keys, id, p.client), id)
		if i == swapped {
			p.next(signer(-i))
			err := p.dial(keys, id, p.client)
			requireStage(t, err, "host key", true)
			for _, want := range []string{
				"HOST KEY CHANGED", id, p.addr, file,
				ssh.FingerprintSHA256(signer(i).PublicKey()), ssh.FingerprintSHA256(signer(-i).PublicKey()),
			} {
				require.ErrorContains(t, err, want)
			}
			p.next(signer(i))
		}
		if i%10 == 0 || i == swapped {
			require.NoError(t, p.dial(keys, id, p.client), "%s, again", id)
		}
		if i%10 > 0 { // nobody reports the end of the others
			require.NoError(t, keys.Forget(t.Context(), id))
		}
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, machines/10, strings.Count(string(text), "\n"))
	for i := range machines {
		if i%10 == 0 {
			require.NoError(t, keys.Forget(t.Context(), fmt.Sprintf("i-%d", i)))
		}
	}
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	require.Empty(t, string(text))
}

// A server that answers before the machine is ready, or in its place, refuses the login. Its key is not remembered.
func TestKeyOfAFailedLoginIsNotRemembered(t *testing.T) {
	p := newAddress(t)
	keys, file := firstUse(t)
	stranger, _ := sshtest.NewKey(t)
	p.next(signer(1))
	requireStage(t, p.dial(keys, "i-1", stranger), "login", true)
	require.NoFileExists(t, file)
	p.next(signer(2))
	require.NoError(t, p.dial(keys, "i-1", p.client))
	p.next(signer(1))
	requireStage(t, p.dial(keys, "i-1", p.client), "host key", true)
}

// Two managers that reach a machine for the first time at the same time may see different keys: the first one counts.
func TestKeyThatAnotherProcessLearnedFirstCounts(t *testing.T) {
	p := newAddress(t)
	keys, file := firstUse(t)
	p.next(signer(1))
	cfg := &mux.Config{
		User: "ci", Auth: []login.Auth{login.Key("of the test", p.client)}, MachineID: "i-1",
		// The command runs after the file was read, and prints no key.
		HostKeys: login.FirstOf(
			keys, command(t, "printf %s '"+strings.TrimSpace(hostLine("", "i-1", signer(2).PublicKey()))+"' >"+file),
		),
	}
	_, err := mux.Dial(sshtest.Within(t), p.addr, cfg)
	requireStage(t, err, "host key", true)
	require.ErrorContains(t, err, "HOST KEY CHANGED")
}

func TestFirstUseNeedsAnIdentityAndAFile(t *testing.T) {
	p := newAddress(t)
	p.next(signer(1))
	keys, file := firstUse(t)
	err := p.dial(keys, "", p.client)
	requireStage(t, err, "prepare", false)
	require.ErrorContains(t, err, "no identity")
	require.NoError(t, os.WriteFile(file, []byte("garbage\n"), 0o600))
	require.ErrorContains(t, p.dial(keys, "i-1", p.client), "line 1")
	_, err = login.FirstUse(t.TempDir())
	require.ErrorContains(t, err, "directory")
}

// A certificate may be renewed; the key in it stays the machine's.
func TestFirstUseRemembersTheKeyOfACertificate(t *testing.T) {
	authority, _ := sshtest.NewKey(t)
	s, host := certified(t, authority, nil)
	other, _ := sshtest.NewKey(t)
	keys, file := firstUse(t)
	cfg := config(s)
	// The client asks for certificates because it knows an authority, though one for another machine.
	cfg.HostKeys = login.FirstOf(keys, known(t, hostLine("@cert-authority", "*", other.PublicKey())))
	cfg.MachineID = "i-1"
	dialWith(t, s, cfg)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), strings.TrimSpace(hostLine("", "i-1", host)))
}

// ssh can use the file, too.
func TestSSHChecksAMachineByTheFile(t *testing.T) {
	sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh")
	s, other := sshtest.OpenSSH(t), sshtest.OpenSSH(t)
	keys, file := firstUse(t)
	cfg := config(s)
	cfg.HostKeys, cfg.MachineID = keys, "zone/i-1"
	dialWith(t, s, cfg)
	ssh := func(at *sshtest.Server, id string) error {
		host, port, _ := strings.Cut(at.Addr, ":")
		return exec.Command("/usr/bin/ssh", "-F", "none", "-i", at.IdentityFile, "-p", port, "-l", at.User,
			"-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "GlobalKnownHostsFile=none",
			"-o", "UserKnownHostsFile="+file, "-o", "HostKeyAlias="+id, host, "exit 0").Run()
	}
	require.NoError(t, ssh(s, "zone/i-1"))
	require.Error(t, ssh(other, "zone/i-1"))
	require.Error(t, ssh(s, "zone/i-2"))
}
