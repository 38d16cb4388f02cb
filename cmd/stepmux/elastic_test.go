package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/instance/elastic/source"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/fleetsim"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// burstVar is how many builds come at once, and killsVar how often the manager is killed; see docs/testing.md.
const burstVar, killsVar = "STEPMUX_ELASTIC_BURST", "STEPMUX_ELASTIC_KILLS"

// cloudDir is the state of testdata/cloud.sh.
type cloudDir struct {
	t    *testing.T
	dir  string
	keys string
}

// newCloud returns a cloud without VMs. Those that it has in the end are ended.
func newCloud(t *testing.T) (c *cloudDir, login string) {
	t.Helper()
	sshtest.RequirePart(t, "openssh-server", "/usr/sbin/sshd")
	signer, key := sshtest.NewKey(t)
	dir := t.TempDir()
	c = &cloudDir{t: t, dir: filepath.Join(dir, "cloud"), keys: filepath.Join(dir, "authorized_keys")}
	block, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(t, err)
	login = filepath.Join(dir, "id")
	require.NoError(t, os.WriteFile(login, pem.EncodeToMemory(block), 0o600))
	require.NoError(t, os.WriteFile(c.keys, ssh.MarshalAuthorizedKey(signer.PublicKey()), 0o600))
	t.Cleanup(func() {
		if ids := c.vms(); len(ids) > 0 {
			c.call("delete", map[string]any{"ids": ids})
		}
	})
	return c, login
}

// call runs an operation.
func (c *cloudDir) call(op string, request map[string]any) {
	text, err := json.Marshal(request)
	require.NoError(c.t, err)
	cmd := exec.Command("testdata/cloud.sh", op)
	cmd.Stdin = bytes.NewReader(text)
	config, err := json.Marshal(map[string]string{"dir": c.dir, "keys": c.keys})
	require.NoError(c.t, err)
	cmd.Env = append(os.Environ(), source.ConfigVar+"="+string(config))
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%s", out)
}

// vms returns the IDs of the VMs that are there.
func (c *cloudDir) vms() (ids []string) {
	all, err := filepath.Glob(filepath.Join(c.dir, "vms", "*[0-9]"))
	require.NoError(c.t, err)
	for _, name := range all {
		ids = append(ids, filepath.Base(name))
	}
	return ids
}

// calls counts the calls of an operation.
func (c *cloudDir) calls(op string) int {
	text, err := os.ReadFile(filepath.Join(c.dir, "calls"))
	require.NoError(c.t, err)
	return bytes.Count(text, []byte(op+" {"))
}

// A program of the operator makes real VMs for a burst of builds, and deletes them after it. The time from the first
// submit to the end of the last build is compared with that of a simulation of the same policy without our latency.
// With kills, the manager is killed at any time: each build runs once, and no VM is left.
func TestVMsOfAProgramRunABurstOfBuilds(t *testing.T) {
	t.Parallel()
	builds, kills := numberFrom(t, burstVar, 4), numberFrom(t, killsVar, 0)
	takes, most, delay := 5*time.Second, 20, 2*time.Second
	if builds < 100 {
		takes, most, delay = 100*time.Millisecond, 2, 0
	}
	c, login := newCloud(t)
	me, err := user.Current()
	require.NoError(t, err)
	script, err := filepath.Abs("testdata/cloud.sh")
	require.NoError(t, err)
	dir := t.TempDir()
	config := filepath.Join(dir, "manager.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
elastic:
  name: small
  exec: %s
  config: {dir: %q, keys: %q, delay: %d}
  defaults: {user: %s, key: %q, runner: %q, temp_dir: %q, isolation: "off"}
  capacity: 2
  max-instances: %d
  period: 5s
  policies: [{idle-time: 2s}]
`, script, c.dir, c.keys, int(delay.Seconds()), me.Username, login, runnertest.Command(t)[0], sshtest.SocketDir(t),
		most), 0o600))
	socket := filepath.Join(sshtest.SocketDir(t), "m.sock")
	m := &managerProcess{
		t: t, socket: socket, patience: sshtest.Bound,
		args: []string{"manager", "--config", config, "--state", filepath.Join(dir, "state"), "--socket", socket},
	}
	m.start()
	t.Cleanup(m.kill)
	conn, err := pb.Dial(socket)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	client := pb.NewManagerClient(conn)

	ledger := filepath.Join(dir, "ledger")
	steps := fmt.Sprintf("run: [{name: s, script: 'echo $CI_JOB_ID >>%s; sleep %.1f'}]\n", ledger, takes.Seconds())
	began := time.Now()
	var ids []string
	for i := range builds {
		resp, err := client.Submit(t.Context(), &pb.SubmitRequest{
			Key: fmt.Sprintf("b-%d", i), Job: &stepmuxv1.Job{Steps: []byte(steps), StepsFile: "s.yml"},
		})
		require.NoError(t, err)
		ids = append(ids, resp.GetId())
	}
	for range kills {
		time.Sleep(rand.N(3 * time.Second)) //nolint:forbidigo // any time
		m.kill()
		m.start()
	}
	for _, id := range ids {
		_, b := wholeLog(t, client, id)
		require.Empty(t, b.GetResult().GetReason(), "%s: %s", id, b.GetResult().GetMessage())
	}
	took := time.Since(began)
	ended := time.Now()
	text, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.Len(t, strings.Fields(string(text)), builds, "each ran once")
	require.Eventually(t, func() bool { return len(c.vms()) == 0 }, sshtest.Bound, 100*time.Millisecond)
	t.Logf("no VM %v after the last build, %d calls of create, %d of delete, %d of list",
		time.Since(ended).Round(time.Second/10), c.calls("create"), c.calls("delete"), c.calls("list"))

	load := fleetsim.Load{Make: delay, Until: time.Hour}
	for range builds {
		load.Builds = append(load.Builds, fleetsim.Build{Takes: takes})
	}
	ideal, err := fleetsim.Run(elastic.Config{
		Capacity: 2, MaxInstances: most, Rules: []elastic.Rule{{IdleTime: 2 * time.Second}},
	}, load)
	require.NoError(t, err)
	t.Logf("%d builds of %v on at most %d VMs: %v, and %v in the simulation (%.2f times)", builds, takes, most,
		took.Round(time.Second/10), ideal.Makespan, took.Seconds()/ideal.Makespan.Seconds())
	status, err := control.Ask(t.Context(), client)
	require.NoError(t, err)
	require.Len(t, status.Groups, 1)
	require.Equal(t, "sshd", status.Groups[0].Source)
	out, err := exec.Command(runnertest.Manager(t), "fleet", "explain", "--manager", socket).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "group small: 0 ready of at most")
	out, err = exec.Command(runnertest.Manager(t), "events", "--manager", socket, "--since", "1h", "vm-1").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, "(?s)^[-0-9]+ [:0-9]+  ready    vm-1  group small: it was reached .*"+
		"  delete   vm-1 .*  gone     vm-1 ", string(out))
	out, err = exec.Command(runnertest.Manager(t), "events", "--manager", socket, "--output", "json", "small").Output()
	require.NoError(t, err)
	require.Regexp(t, `^{"at":"[^"]+","kind":"create","group":"small","note":"[0-9]+ VMs, request `, string(out))
}
