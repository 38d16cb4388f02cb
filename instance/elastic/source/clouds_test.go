package source

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// The commands of the clouds are stand-ins: testdata/fake.sh. So this test shows that the programs of examples/elastic
// keep the contract, and not that the clouds take these calls.
func TestTheExamplesOfCloudsKeepTheContractWithStandInsForTheirCommands(t *testing.T) {
	t.Parallel()
	sshtest.RequirePart(t, "jq", "/usr/bin/jq")
	sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh-keygen")
	for cloud, test := range map[string]struct{ later, never string }{
		"hcloud":    {"hcloud: server limit reached (resource_limit_exceeded, 1c2)", "hcloud: Image not found: x"},
		"aws":       {"(VcpuLimitExceeded) when calling the RunInstances operation", "(InvalidAMIID.NotFound) when calling"},
		"openstack": {"Quota exceeded for instances: Requested 1, but already used 10 of 10", "No Image found for x"},
		"incus":     {`Error: Reached maximum number of instances "limits.instances"`, "Error: Image not found"},
		"libvirt":   {"error: Failed to connect socket to '/var/run/libvirt/virtqemud-sock'", "error: Domain not found"},
	} {
		t.Run(cloud, func(t *testing.T) {
			t.Parallel()
			checkCloud(t, cloud, test.later, test.never)
		})
	}
}

func checkCloud(t *testing.T, cloud, later, never string) {
	bin, state := t.TempDir(), t.TempDir()
	fake, err := filepath.Abs("testdata/fake.sh")
	require.NoError(t, err)
	for _, command := range []string{"hcloud", "aws", "openstack", "incus", "virsh", "virt-install", "qemu-img"} {
		require.NoError(t, os.Symlink(fake, filepath.Join(bin, command)))
	}
	settings, err := json.Marshal(map[string]any{
		"image": "debian", "type": "small", "dir": filepath.Join(state, "disks"), "authorized_key": hostKey,
		"args": []string{"--more", `it's "quoted"; $HOME`},
	})
	require.NoError(t, err)
	open := func(group string) *Exec {
		e, err := NewExec(ExecConfig{
			Command: []string{
				"/usr/bin/env", "PATH=" + bin + ":" + os.Getenv("PATH"), "FAKE=" + state,
				"../../../examples/elastic/" + cloud + "/" + cloud + ".sh",
			},
			Group: group, Settings: settings,
		})
		require.NoError(t, err)
		return e
	}
	e, other := open("linux"), open("linu")
	info, err := e.Info(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, info.Name)

	request := Request{ID: "0d6bc0fb-1f4b-4c59-8a6e-6f5ee3c8f0b5", Count: 2, UserData: "#!/bin/sh\necho 'from the file'\n"}
	n, ids, err := e.Create(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, again, err := e.Create(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.ElementsMatch(t, ids, again)
	made, err := filepath.Glob(filepath.Join(state, "*.vm"))
	require.NoError(t, err)
	require.Len(t, made, 2)

	list, err := e.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	addresses := map[string]bool{}
	for _, vm := range list {
		require.Contains(t, ids, vm.ID)
		require.Equal(t, Running, vm.State)
		require.Len(t, vm.HostKeys, 1)
		addresses[vm.Address] = true
	}
	require.Equal(t, map[string]bool{"10.0.0.1": true, "10.0.0.2": true}, addresses)
	for _, file := range made {
		args, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(args), "PRIVATE", "a private key as an argument")
		require.Contains(t, string(args), `it's \"quoted\"; $HOME`)
		if cloud != "libvirt" {
			require.Contains(t, string(args), request.ID)
		}
		data, err := os.ReadFile(strings.TrimSuffix(file, ".vm") + ".init")
		require.NoError(t, err)
		checkUserData(t, data, cloud != "incus", list)
	}

	// Another group's VMs are not its own.
	list, err = other.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	deleted, err := other.Delete(t.Context(), ids, "are not there")
	require.NoError(t, err)
	require.ElementsMatch(t, ids, deleted)
	list, err = e.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)

	fail := filepath.Join(state, "fail")
	for text, try := range map[string]bool{later: true, never: false} {
		require.NoError(t, os.WriteFile(fail, []byte(text+"\n"), 0o600))
		_, _, err = e.Create(t.Context(), Request{ID: "1", Count: 1})
		require.ErrorContains(t, err, strings.ReplaceAll(text, `"`, `\"`))
		if try {
			require.ErrorIs(t, err, ErrTryLater)
		} else {
			require.NotErrorIs(t, err, ErrTryLater)
		}
	}
	require.NoError(t, os.Remove(fail))

	deleted, err = e.Delete(t.Context(), append([]string{"unknown"}, ids...), "are not needed")
	require.NoError(t, err)
	require.ElementsMatch(t, append([]string{"unknown"}, ids...), deleted)
	list, err = e.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	left, err := filepath.Glob(filepath.Join(state, "disks/*/*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// checkUserData checks the user data of a VM: first ours, and then those of the request. If keyed is true, they have
// the private part of a host key that is listed.
func checkUserData(t *testing.T, data []byte, keyed bool, list []VM) {
	t.Helper()
	head := regexp.MustCompile(`^Content-Type: multipart/mixed; boundary="(.+)"\nMIME-Version: 1.0\n`)
	boundary := head.FindSubmatch(data)
	require.NotNil(t, boundary, "%s", data)
	parts := bytes.Split(data, []byte("\n--"+string(boundary[1])))
	require.Len(t, parts, 4)
	_, first, found := bytes.Cut(parts[1], []byte("\n\n#cloud-config\n"))
	require.True(t, found)
	require.Contains(t, string(parts[2]), "\n\n#!/bin/sh\necho 'from the file'\n")
	var config struct {
		Login []string `json:"ssh_authorized_keys"`
		Keys  struct {
			Private string `json:"ed25519_private"`
			Public  string `json:"ed25519_public"`
		} `json:"ssh_keys"`
	}
	require.NoError(t, json.Unmarshal(first, &config))
	require.Equal(t, []string{hostKey}, config.Login)
	if !keyed {
		require.Empty(t, config.Keys.Private)
		return
	}
	signer, err := ssh.ParsePrivateKey([]byte(config.Keys.Private))
	require.NoError(t, err)
	public := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	require.Equal(t, public, strings.TrimSpace(config.Keys.Public))
	var listed []string
	for _, vm := range list {
		listed = append(listed, vm.HostKeys...)
	}
	require.Contains(t, listed, public)
}
