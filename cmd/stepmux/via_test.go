package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// A bastion, VMs behind it, and a VM behind one of those: run and doctor connect to each of them once.
func TestAnInventoryOfVMsBehindABastion(t *testing.T) {
	t.Parallel()
	stepmux, dir := runnertest.Manager(t), sshtest.SocketDir(t)
	put := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	user := sshtest.OpenSSH(t)
	authorized := "AuthorizedKeysFile " + put("authorized_keys", string(ssh.MarshalAuthorizedKey(user.Signer.PublicKey())))
	start := func() *sshtest.Server { return sshtest.OpenSSH(t, authorized, "AllowTcpForwarding local") }
	bastion, first, second, inside := start(), start(), start(), start()
	all := []*sshtest.Server{bastion, first, second, inside}
	hosts := ""
	for _, s := range all {
		text, err := os.ReadFile(s.KnownHosts)
		require.NoError(t, err)
		hosts += string(text)
	}
	put("known_hosts", hosts)
	put("job.yml", "run: [{script: 'echo here'}]")
	put("fleet.yml", fmt.Sprintf(`
defaults: {user: %s, key: %s, runner: %s, via: '%s', capacity: 2}
instances:
  - {id: vm-1, address: '%s'}
  - {id: vm-2, address: '%s'}
  - {id: inside, address: '%s', via: vm-1}
`, bastion.User, user.IdentityFile, stepmux, bastion.Addr, first.Addr, second.Addr, inside.Addr))
	conns := func() (n []int) {
		for _, s := range all {
			n = append(n, s.TotalConns())
		}
		return n
	}
	exe := func(args ...string) (string, error) {
		cmd := exec.Command(stepmux,
			append(args, "--inventory", "fleet.yml", "--known-hosts", "known_hosts", "--ssh-config", "none")...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK=", "TMPDIR="+dir)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}

	out, err := exe("run", "--builds", "12", "job.yml")
	require.NoError(t, err, out)
	require.Contains(t, out, "12 builds, 0 failed")
	require.Equal(t, 12, strings.Count(out, "| here"))
	require.Contains(t, out, fmt.Sprintf("jump host %s@%s: connections: 1\n", bastion.User, bastion.Addr))
	require.Equal(t, []int{1, 1, 1, 1}, conns())
	out, err = exe("run", "--builds", "6", "--output", "json", "job.yml")
	require.NoError(t, err, out)
	require.Contains(t, out, fmt.Sprintf(`"jump_hosts":{"%s@%s":1}`, bastion.User, bastion.Addr))

	before := conns()
	out, err = exe("doctor")
	require.NoError(t, err, out)
	require.Equal(t, 3, strings.Count(out, "builds can run here"), out)
	require.Equal(t, 3, strings.Count(out, "accepted by known_hosts [known_hosts]"), out)
	after := conns()
	require.Equal(t, before[0]+1, after[0], "one for all: %s", out)
	require.Equal(t, before[1]+3, after[1], "two to examine it, one as a jump host: %s", out)
	require.Equal(t, before[3]+2, after[3])
}

func TestAnInventoryThatLoopsIsAMistake(t *testing.T) {
	t.Parallel()
	stepmux, dir := runnertest.Manager(t), t.TempDir()
	file := filepath.Join(dir, "fleet.yml")
	text := "instances:\n  - {id: a, address: x, via: b}\n  - {id: b, address: y, via: a}\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "job.yml"), []byte("run: [{script: 'true'}]"), 0o600))
	out, err := exec.Command(stepmux, "run", "--inventory", file, "--host-key", "insecure",
		filepath.Join(dir, "job.yml")).CombinedOutput()
	require.Equal(t, exitUsage, exitOf(err))
	require.Contains(t, string(out), "fleet.yml:2:5: the way to a never arrives: a via b via a")
}
