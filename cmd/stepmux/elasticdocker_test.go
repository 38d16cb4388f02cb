package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/elastic/source"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// containerCloud is a daemon with the image and the network of examples/elastic/docker.
type containerCloud struct {
	*dockertest.Daemon
	dir       string // of the example
	key       string // the private key that may log in
	publicKey string
}

func newContainerCloud(t *testing.T) *containerCloud {
	t.Helper()
	sshtest.RequirePart(t, "jq", "/usr/bin/jq")
	dockerScripts.Lock()
	t.Cleanup(dockerScripts.Unlock)
	c := &containerCloud{Daemon: dockertest.Start(t), key: filepath.Join(t.TempDir(), "id")}
	var err error
	c.dir, err = filepath.Abs("../../examples/elastic/docker")
	require.NoError(t, err)
	c.LoadSSHD(t, "stepmux-vm", filepath.Join(c.dir, "start.sh"))
	_, err = c.Client.NetworkCreate(t.Context(), "stepmux", client.NetworkCreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		c.RemoveAll(t)
		_, err := c.Client.NetworkRemove(context.Background(), "stepmux", client.NetworkRemoveOptions{})
		require.NoError(t, err)
	})
	t.Setenv("DOCKER_HOST", "unix://"+c.Socket)
	out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", c.key).CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(c.key + ".pub")
	require.NoError(t, err)
	c.publicKey = strings.TrimSpace(string(text))
	return c
}

// The shipped example as it is, with its manager.yml: a build brings a container, and none is left after it.
func TestTheExampleOfContainersAsVMsRunsABuild(t *testing.T) {
	c := newContainerCloud(t)
	text, err := os.ReadFile(filepath.Join(c.dir, "manager.yml"))
	require.NoError(t, err)
	dir := t.TempDir()
	login := regexp.MustCompile(`authorized_key: .*`)
	config := login.ReplaceAllLiteralString(string(text), "authorized_key: "+c.publicKey)
	config = strings.NewReplacer(
		"/etc/stepmux/elastic/docker", c.dir, "/etc/stepmux/id_ci", c.key, "/var/lib/stepmux", filepath.Join(dir, "state"),
		"idle-time: 5m", "idle-time: 1s", "capacity: 2", "period: 2s",
	).Replace(config)
	file := filepath.Join(dir, "manager.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	m := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: sshtest.Bound}
	m.args = []string{"manager", "--config", file, "--socket", m.socket}
	m.start()
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			t.Log(m.stderr.String())
		}
	})
	conn, err := pb.Dial(m.socket)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	manager := pb.NewManagerClient(conn)
	resp, err := manager.Submit(t.Context(), &pb.SubmitRequest{Key: "k", Job: &stepmuxv1.Job{
		Steps: []byte("run: [{name: s, script: 'hostname; id -un'}]\n"), StepsFile: "s.yml",
	}})
	require.NoError(t, err)
	log, b := wholeLog(t, manager, resp.GetId())
	require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
	require.Regexp(t, `(?m)^containers-[0-9a-f]{16}-1\nci$`, log)
	require.Eventually(t, func() bool { return len(c.List(t)) == 0 }, sshtest.Bound, 100*time.Millisecond)
}

// The contract, by the decoder of the manager.
func TestTheExampleOfContainersAsVMsKeepsTheContract(t *testing.T) {
	c := newContainerCloud(t)
	settings, err := json.Marshal(map[string]any{
		"image": "stepmux-vm", "network": "stepmux", "authorized_key": c.publicKey,
		"args": []string{"--env", "A=a 'quoted' b"},
	})
	require.NoError(t, err)
	open := func(group string, settings []byte) *source.Exec {
		t.Helper()
		e, err := source.NewExec(source.ExecConfig{
			Command: []string{filepath.Join(c.dir, "docker.sh")}, Group: group, Settings: settings,
		})
		require.NoError(t, err)
		return e
	}
	e := open("a", settings)
	request := source.Request{ID: "0d6bc0fb-1f4b-4c59-8a6e-6f5ee3c8f0b5", Count: 2, UserData: "#!/bin/sh\n"}
	for range 2 {
		n, ids, err := e.Create(t.Context(), request)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.ElementsMatch(t, []string{"a-0d6bc0fb1f4b4c59-1", "a-0d6bc0fb1f4b4c59-2"}, ids)
	}
	made := c.List(t)
	require.Len(t, made, 2)
	require.Equal(t, request.ID, made[0].Labels["stepmux-request"])
	var all []source.VM
	require.Eventually(t, func() bool {
		all, err = e.List(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 2)
		return all[0].State == source.Running && all[1].State == source.Running
	}, sshtest.Bound, 50*time.Millisecond)
	for _, vm := range all {
		require.WithinDuration(t, time.Now(), vm.Created, time.Minute)
		require.Len(t, vm.HostKeys, 1)
		require.Eventually(t, func() bool {
			out, err := exec.Command("ssh-keyscan", "-t", "ed25519", vm.Address).Output()
			return err == nil && string(out) == vm.Address+" "+vm.HostKeys[0]+"\n"
		}, sshtest.Bound, 50*time.Millisecond)
		out, err := exec.Command("docker", "exec", vm.ID, "sh", "-c", `echo "$A"`).Output()
		require.NoError(t, err)
		require.Equal(t, "a 'quoted' b\n", string(out))
	}
	require.NotEqual(t, all[0].HostKeys, all[1].HostKeys)

	// Another group's VMs are not its own.
	other := open("b", settings)
	list, err := other.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	deleted, err := other.Delete(t.Context(), []string{all[0].ID}, "is not there")
	require.NoError(t, err)
	require.Equal(t, []string{all[0].ID}, deleted)
	require.Len(t, c.List(t), 2)

	deleted, err = e.Delete(t.Context(), []string{"unknown", all[0].ID, all[1].ID}, "is not needed")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"unknown", all[0].ID, all[1].ID}, deleted)
	list, err = e.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)

	// A container that cannot be made is not left.
	_, _, err = open("a", []byte(`{"image": "bare:1", "network": "stepmux", "authorized_key": "k"}`)).
		Create(t.Context(), source.Request{ID: "1", Count: 1})
	require.ErrorContains(t, err, "No command specified")
	require.NotErrorIs(t, err, source.ErrTryLater)
	require.Empty(t, c.List(t))
	_, _, err = open("a", []byte(`{"network": "stepmux"}`)).Create(t.Context(), source.Request{ID: "1", Count: 1})
	require.ErrorContains(t, err, "config needs the key image")

	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(t.TempDir(), "none"))
	_, err = e.List(t.Context())
	require.ErrorIs(t, err, source.ErrTryLater)
}
