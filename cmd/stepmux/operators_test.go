package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// blocks returns the code blocks of a page in a language.
func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	var all []string
	for i, block := range strings.Split(string(text), "\n```") {
		if rest, ok := strings.CutPrefix(block, language+"\n"); ok && i%2 == 1 {
			all = append(all, rest)
		}
	}
	return all
}

// The commands on the operators' page work as described, in order, on three real sshds: two VMs and a bastion.
func TestCommandsOfTheOperatorsPageWork(t *testing.T) {
	sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh-keyscan")
	stepmux := runnertest.Manager(t)
	dir := t.TempDir()
	path := "PATH=" + filepath.Dir(stepmux) + ":" + os.Getenv("PATH")
	put := func(name, text string, mode os.FileMode) string {
		t.Helper()
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(text), mode))
		return file
	}
	user := sshtest.OpenSSH(t)
	key, err := os.ReadFile(user.IdentityFile)
	require.NoError(t, err)
	public := string(ssh.MarshalAuthorizedKey(user.Signer.PublicKey()))
	authorized := "AuthorizedKeysFile " + put("authorized_keys", public, 0o600)
	vms := map[string]*sshtest.Server{
		"vm-1":    sshtest.OpenSSH(t, authorized, "SetEnv SHLVL=1 "+path),
		"vm-2":    sshtest.OpenSSH(t, authorized, "SetEnv SHLVL=1 "+path),
		"bastion": sshtest.OpenSSH(t, authorized, "AllowTcpForwarding local"),
	}
	// The page's ssh_config comes last, because its part about vm-* applies to all VMs.
	config, hosts := "", ""
	for name, vm := range vms {
		host, port, err := net.SplitHostPort(vm.Addr)
		require.NoError(t, err)
		config += fmt.Sprintf("Host %s\n  HostName %s\n  Port %s\n  User %s\n  IdentityFile ~/.ssh/fleet\n  "+
			"UserKnownHostsFile ~/.ssh/fleet_hosts\n", name, host, port, vm.User)
		hosts += fmt.Sprintf("[%s]:%s %s", host, port, ssh.MarshalAuthorizedKey(vm.HostKey))
	}
	page := "../../docs/operators.md"
	put(".ssh/config", config+strings.Join(blocks(t, page, "ssh_config"), "\n"), 0o600)
	put(".ssh/fleet", string(key), 0o600)
	put(".ssh/fleet_hosts", hosts, 0o600)
	put("id_ed25519", string(key), 0o600)
	put("locked", string(key), 0o600)
	put("passphrase", "secret\n", 0o600)
	put("ca.pub", public, 0o600)
	put("host-keys", "#!/bin/sh\ncat ~/.ssh/fleet_hosts\n", 0o700)
	put("issue", "#!/bin/sh\ncat id_ed25519\n", 0o700)
	hello, err := os.ReadFile("../../examples/hello.yml")
	require.NoError(t, err)
	put("hello.yml", string(hello), 0o600)
	run := func(line string) string {
		t.Helper()
		cmd := exec.Command("/bin/sh", "-ec", line)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), path, "HOME="+dir, "SSH_AUTH_SOCK=", "XDG_STATE_HOME=", "TMPDIR="+sshtest.SocketDir(t))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", line, out)
		return string(out)
	}
	run("ssh-keygen -q -p -a 1 -N secret -f locked")

	// The machines of the page have other addresses here.
	host, port, err := net.SplitHostPort(vms["vm-1"].Addr)
	require.NoError(t, err)
	here := strings.NewReplacer("ssh-keyscan -p 22 vm-1", "ssh-keyscan -p "+port+" "+host, "ssh://ci@vm-1:22",
		"ssh://"+vms["vm-1"].User+"@"+vms["vm-1"].Addr)
	commands := blocks(t, page, "sh")
	require.Greater(t, len(commands), 8)
	for _, lines := range commands {
		before := vms["bastion"].TotalConns()
		out := run(here.Replace(lines))
		require.Equal(t, strings.Count(lines, "stepmux run"), strings.Count(out, " 0 failed"), out)
		if strings.Contains(lines, "--jump bastion") {
			require.Equal(t, 1, vms["bastion"].TotalConns()-before, "two VMs, one connection")
		}
	}

	// And the page's part about a machine that was replaced.
	i := slices.IndexFunc(commands, func(c string) bool { return strings.Contains(c, "first-use:machines") })
	require.NotEqual(t, -1, i)
	first, _, _ := strings.Cut(commands[i], "\n")
	out := run("! " + strings.Replace(first, "=vm-1", "=vm-2", 1))
	require.Contains(t, out, "HOST KEY CHANGED: machine i-0aa1")
}
