package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestExampleRunsOnTwoMachinesOverOneConnectionEach(t *testing.T) {
	one := sshtest.InProcess(t, embeddedvm.Config{})
	two := sshtest.InProcess(t, embeddedvm.Config{AuthorizedKeys: []ssh.PublicKey{one.Signer.PublicKey()}})
	home := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(home, ".ssh"), 0o700))
	for name, parts := range map[string][]string{
		"id_ed25519":  {one.IdentityFile},
		"known_hosts": {one.KnownHosts, two.KnownHosts},
	} {
		var text []byte
		for _, part := range parts {
			read, err := os.ReadFile(part)
			require.NoError(t, err)
			text = append(text, read...)
		}
		require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", name), text, 0o600))
	}

	program := filepath.Join(t.TempDir(), "pool")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build compiles its packages
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := exec.Command(program, one.User+"@"+one.Addr, two.User+"@"+two.Addr)
	cmd.Env = append(os.Environ(), "HOME="+home)
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 4, strings.Count(string(out), ": Linux "), "%s", out)
	require.Equal(t, 1, one.TotalConns())
	require.Equal(t, 1, two.TotalConns())
}
