package main

import (
	"encoding/pem"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/flagfile"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestAManagersConfigurationMayHaveAListForEachFlagThatMayRepeat(t *testing.T) {
	lists := filepath.Join(t.TempDir(), "manager.yml")
	require.NoError(t, os.WriteFile(lists, []byte("{host-key: [known-hosts, first-use], known-hosts: [a, b], "+
		"instance: ['ssh://a', 'ssh://b'], nats: ['nats://c', 'nats://d']}"), 0o600))
	for _, name := range []string{lists, "../../examples/manager.yml"} {
		require.NoError(t, flagfile.Apply(newManagerCommand().Flags(), name))
	}
}

// badConfig is a configuration that cannot be used.
type badConfig struct {
	name, want string
	args       []string
}

func bad(name, want string, args ...string) badConfig { return badConfig{name, want, args} }

// badConfigs returns configurations of a manager that cannot be used. It makes their files in dir.
func badConfigs(t *testing.T, dir string) []badConfig {
	t.Helper()
	file := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), mode))
		return name
	}
	state := func(name string) string {
		return "--state=" + filepath.Dir(file("state-"+name+"/"+name, "text", 0o600))
	}
	garbage, empty := file("bad", "text\n", 0o600), file("none", "", 0o600)
	readable := file("open", strings.Repeat("t", 64), 0o644)
	key := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB+ha4hxXZGf2Iwhnqx5wJnQYlkwtEb8ywHLDPOuzMmJ"
	options := file("options", `command="x" `+key, 0o600)
	missing := filepath.Join(dir, "missing", "file")
	const page, api, vm = "--http-listen=127.0.0.1:0", "--api-listen=127.0.0.1:0", "--instance=ssh://u@127.0.0.1:1"
	_, private := sshtest.NewKey(t)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	login := "--identity=" + file("id", string(pem.EncodeToMemory(block)), 0o600)
	nats := []string{
		vm, login, "--host-key=insecure", "--key-file=" + filepath.Join(dir, "key"), "--nats=nats://127.0.0.1:1",
	}
	door := func(keys string) []string {
		return []string{"--ssh-listen=127.0.0.1:0", "--ssh-authorized-keys=" + keys}
	}
	with := func(args []string, more ...string) []string { return slices.Concat(args, more) }
	return []badConfig{
		bad("a token that is too short", "the token is too short", page, "--token-file="+garbage),
		bad("a token that others can read", "can be read by others", api, "--token-file="+readable),
		bad("a token that cannot be made", "no such file", api, "--token-file="+missing),
		bad("a token in the state", "the token is too short", api, state("token")),
		bad("a certificate that is none", "certificate", api, "--tls-cert="+garbage, "--tls-key="+garbage),
		bad("a certificate that is missing", "no such file", api, "--tls-cert="+missing, "--tls-key="+garbage),
		bad("a certificate in the state", "certificate", api, state("tls.pem")),
		bad("authorized keys that are missing", "no such file", door(missing)...),
		bad("authorized keys with options", "are not supported", door(options)...),
		bad("a host key in the state", "host key", with(door(empty), state("ssh_host_ed25519_key"))...),
		bad("a key file of another size", "is not a file of 32 bytes", "--key-file="+garbage),
		bad("a key file that cannot be made", "no such file", "--key-file="+missing),
		bad("a key in the state", "is not a file of 32 bytes", state("key")),
		bad("a state that is a file", "not a directory", "--state="+garbage),
		bad("a state below a file", "not a directory", "--state="+garbage+"/state"),
		bad("a socket that is a file", "the path exists and is not a socket", "--socket="+garbage),
		bad("a socket that cannot be made", "no such file", "--socket="+missing),
		bad("a socket with a long name", "more than 107 bytes", "--socket="+dir+strings.Repeat("/d", 60)),
		bad("an address of metrics", "invalid port", "--metrics=127.0.0.1:99999"),
		bad("an address of the page", "invalid port", "--http-listen=127.0.0.1:99999"),
		bad("an address of another machine", "cannot assign", "--api-listen=192.0.2.1:0"),
		bad("no builds on the embedded VM", "a VM takes at least one build", "--capacity=0"),
		bad("a login to the embedded VM", "--identity needs a VM", "--identity="+garbage),
		bad("a user of the embedded VM", "a b", "--build-user=a b"),
		bad("a daemon without a known address", "ftp://x", "--docker=ftp://x"),
		bad("a daemon that is missing", "connect to the Docker daemon", "--image=i", "--docker=unix://"+missing),
		bad("an address of NATS", "the address is no URL", with(nats[:4], "--nats=nats://u:%zz@127.0.0.1:1")...),
		bad("authorities of NATS that are missing", "no such file", with(nats, "--nats-ca="+missing)...),
		bad("a certificate for NATS", "certificate", with(nats, "--nats-cert="+garbage, "--nats-key="+garbage)...),
		bad("credentials of NATS", "connect to NATS", with(nats, "--nats-creds="+garbage)...),
		bad("an ID of a manager", "is no ID of a manager", with(nats, state("manager-id"))...),
		bad("an inventory that is missing", "no such file", "--inventory="+missing),
		bad("a key of a VM that is missing", "no such file", vm, "--identity="+missing),
	}
}

// Symptom: --check passed a configuration that the start refused, as with a token that was too short.
//
//stepmux:faults users | The check of a configuration passes what the start refuses
//stepmux:with cmd/stepmux.TestCheckPassesTheConfigurationOfAManagerThatRuns
func TestCheckRefusesWhatTheStartRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range badConfigs(t, t.TempDir()) {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			state := filepath.Join(t.TempDir(), "state")
			args := slices.Concat([]string{
				"manager", "--state=" + state, "--socket=" + filepath.Join(sshtest.SocketDir(t), "s"),
			}, test.args)
			started, startCode := refusal(t, args)
			checked, checkCode := refusal(t, append(args, "--check"))
			require.Contains(t, started, test.want)
			require.Equal(t, started, checked)
			require.Equal(t, startCode, checkCode)
			require.NoDirExists(t, state)
		})
	}
}

// refusal runs a command that is refused, and returns what it says.
func refusal(t *testing.T, args []string) (text string, code int) {
	t.Helper()
	cmd := exec.CommandContext(sshtest.Within(t), runnertest.Manager(t), args...)
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "%q: %s", args, out)
	require.Contains(t, []int{exitUsage, exitSystem}, cmd.ProcessState.ExitCode(), "%q: %s", args, out)
	return string(out), cmd.ProcessState.ExitCode()
}

// A manager with the same configuration may be running: its state, its socket and its ports are in use.
func TestCheckPassesTheConfigurationOfAManagerThatRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var ports []string
	for range 3 { // as of a manager
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		ports = append(ports, listener.Addr().String())
	}
	p := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound}
	p.args = []string{"manager", "--state", filepath.Join(dir, "state"), "--socket", p.socket}
	p.start()
	defer p.kill()
	before := namesIn(t, dir)
	out, err := exec.CommandContext(sshtest.Within(t), runnertest.Manager(t), append(p.args, "--check",
		"--metrics", ports[0], "--api-listen", ports[1], "--http-listen", ports[2])...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	vm := sshtest.InProcess(t, embeddedvm.Config{})
	out, err = exec.CommandContext(sshtest.Within(t), runnertest.Manager(t), append(p.args, "--check",
		"--instance", "ssh://"+vm.User+"@"+vm.Addr, "--identity", vm.IdentityFile,
		"--host-key", "first-use:"+filepath.Join(dir, "keys", "first-use"))...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "the configuration is valid")
	require.Equal(t, before, namesIn(t, dir), "it makes no file")
}

// namesIn returns the names of the files below a directory, but for those of the store of a manager that runs.
func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == "jetstream" {
			return fs.SkipDir
		}
		names = append(names, path)
		return err
	}))
	return names
}
