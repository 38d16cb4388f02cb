package main

import (
	"fmt"
	"net"
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

// tour is what each part of docs/tour.md shows, in order.
var tour = []struct {
	title string
	shows []string
}{
	{"You run stock GitLab runners", []string{
		"builds can run here", "vm-2", "a job on Linux\n", "exit code 1, that of the script is 7\n",
		"vm-1: a new kernel",
	}},
	{"You have 1,000 short builds", []string{
		"20 builds, 0 failed", "\n20\n", "failed alike: 4 builds", "exit code 1\n", "exit code 1\n",
		`{"summary":{"builds":20,"failed":0,`,
	}},
	{"You have 20 VMs and no CI", []string{
		"4 builds, 0 failed", " | built\n", "2 builds, 0 failed", "/out/app\n", "hello all of you\n", "4 builds, 0 failed",
	}},
	{"You write Go", []string{"hello from Go\n", "script_failure", "exit code 7\n"}},
}

// The commands of the tour work as described, on a stock sshd.
func TestTheTourOfFourUsersWorks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, program := range map[string]string{
		"stepmux": runnertest.Manager(t), "stepmux-custom-executor": runnertest.CustomExecutor(t),
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o755))
		require.NoError(t, os.Symlink(program, filepath.Join(dir, "bin", name)))
	}
	path := "PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(root, filepath.Join(dir, "stepmux")))
	// All VMs are one server.
	vm := sshtest.OpenSSH(t, "MaxStartups 100", "SetEnv SHLVL=1 "+path)
	host, port, err := net.SplitHostPort(vm.Addr)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".ssh"), 0o700))
	key, err := os.ReadFile(vm.IdentityFile)
	require.NoError(t, err)
	for name, text := range map[string]string{
		"config":      fmt.Sprintf("Host vm-*\n  HostName %s\n  Port %s\n  User %s\n", host, port, vm.User),
		"known_hosts": fmt.Sprintf("[%s]:%s %s", host, port, ssh.MarshalAuthorizedKey(vm.HostKey)),
		"id_ed25519":  string(key),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".ssh", name), []byte(text), 0o600))
	}
	env := append(os.Environ(), path, "HOME="+dir, "SSH_AUTH_SOCK=", "XDG_STATE_HOME=", "TMPDIR="+sshtest.SocketDir(t),
		"CGO_ENABLED=0")
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GOFLAGS"} {
		value, err := exec.Command("go", "env", name).Output()
		require.NoError(t, err)
		env = append(env, name+"="+strings.TrimSpace(string(value)))
	}
	here := strings.NewReplacer("1000", "20", "seq 20", "seq 4", "ci@vm-1:22", vm.User+"@"+vm.Addr)

	page, err := os.ReadFile("../../docs/tour.md")
	require.NoError(t, err)
	example, err := os.ReadFile("../../examples/library/runner/main.go")
	require.NoError(t, err)
	parts := strings.Split(string(page), "\n## ")[1:]
	require.Len(t, parts, len(tour))
	for i, part := range parts {
		require.True(t, strings.HasPrefix(part, tour[i].title+"\n"), part)
		var script strings.Builder
		for j, block := range strings.Split(part, "\n```") {
			if j%2 == 0 {
				continue
			}
			language, text, _ := strings.Cut(block, "\n")
			switch language {
			case "sh":
				script.WriteString(here.Replace(text) + "\n")
			case "yaml":
				first, _, _ := strings.Cut(text, "\n")
				name := strings.TrimPrefix(first, "# ")
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600))
			case "go":
				require.Contains(t, string(example), text)
			}
		}
		cmd := exec.CommandContext(sshtest.Within(t), "sh", "-ec", script.String())
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", tour[i].title, out)
		rest := string(out)
		for _, want := range tour[i].shows {
			_, after, found := strings.Cut(rest, want)
			require.True(t, found, "%q is not in what is left of the output:\n%s\nof\n%s", want, rest, out)
			rest = after
		}
	}
}
