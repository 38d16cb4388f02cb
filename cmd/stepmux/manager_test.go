package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// numberFrom returns the number in a variable of the environment, or otherwise.
func numberFrom(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// managerProcess is a stepmux manager that is killed and started again.
type managerProcess struct {
	t      *testing.T
	args   []string
	socket string
	// patience bounds the wait for its start.
	patience time.Duration
	stderr   bytes.Buffer
	cmd      *exec.Cmd
}

// start starts the manager and waits until it listens.
func (p *managerProcess) start() {
	p.t.Helper()
	p.cmd = exec.Command(runnertest.Manager(p.t), p.args...)
	p.cmd.Stderr = &p.stderr
	runnertest.StartManager(p.t, p.cmd, p.patience, &p.stderr)
}

func (p *managerProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// newInventory starts VMs, and writes an inventory of them to dir.
func newInventory(t *testing.T, dir string, vms int) (file string, ports []string) {
	t.Helper()
	inventory := "instances:\n"
	for i := range vms {
		s := sshtest.OpenSSH(t)
		_, port, ok := strings.Cut(s.Addr, ":")
		require.True(t, ok)
		ports = append(ports, port)
		inventory += fmt.Sprintf("  - {id: vm-%d, address: %q, user: %s, key: %s, capacity: 4, runner: %s, temp_dir: %s, "+
			"host_keys: [%q]}\n", i, s.Addr, s.User, s.IdentityFile, runnertest.Command(t)[0], sshtest.SocketDir(t),
			strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.HostKey))))
	}
	file = filepath.Join(dir, "fleet.yml")
	require.NoError(t, os.WriteFile(file, []byte(inventory), 0o600))
	return file, ports
}

// counted is how many lines a countingJob writes.
const counted = 120

// countingJob writes its ID to a ledger, and lines to its log. It has an artifact.
func countingJob(key, ledger string) *pb.SubmitRequest {
	steps := fmt.Sprintf(`run:
- name: counts
  script: |
    set -e
    echo "$CI_JOB_ID" | tee -a %s >id
    i=0
    while [ $i -lt %d ]; do
      i=$((i+1)); echo "line $i of $CI_JOB_ID"
      [ $((i %% 40)) -ne 0 ] || sleep 0.02
    done
`, ledger, counted)
	return &pb.SubmitRequest{
		Key: key, Job: &stepmuxv1.Job{Steps: []byte(steps), StepsFile: "counts.yml"}, Artifacts: []string{"id"},
	}
}

// requireCounted waits for builds with a countingJob: each succeeds, runs once, and has its whole log and its artifact.
func requireCounted(t *testing.T, ids []string, ledger string, client func(id string) pb.ManagerClient) {
	t.Helper()
	for _, id := range ids {
		text, b := wholeLog(t, client(id), id)
		require.Empty(t, b.GetResult().GetReason(), "%s: %s", id, b.GetResult().GetMessage())
		require.Equal(t, linesOf(id, counted), withoutRemarks(text), "the log of %s", id)
		require.Positive(t, b.GetResult().GetArtifacts(), id)
	}
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	times := map[string]int{}
	for line := range strings.Lines(string(ran)) {
		times[strings.TrimSpace(line)]++
	}
	for _, id := range ids {
		require.Equal(t, 1, times[id], "how often %s ran", id)
	}
	require.Len(t, times, len(ids))
}

// linesOf is the log of a build of the test below.
func linesOf(id string, n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "line %d of %s\n", i+1, id)
	}
	return text.String()
}

// Symptom: after a kill the manager logged ten warnings of its store, such as "Stream state outdated, will rebuild".
//
//stepmux:faults users | Warnings about what repairs itself; a page that shows what is not so
//stepmux:with instance/manager.TestThePageHasTheFilesOfBuildsThatRunAndUndrainsWhatIsDrained
func TestAManagerThatWasKilledSaysOnceWhatWasRepaired(t *testing.T) {
	t.Parallel()
	p := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound}
	p.args = []string{"manager", "--state", filepath.Join(t.TempDir(), "state"), "--socket", p.socket}
	conn, err := pb.Dial(p.socket)
	require.NoError(t, err)
	defer conn.Close()
	m := pb.NewManagerClient(conn)
	build := func() {
		b, err := m.Submit(t.Context(), &pb.SubmitRequest{Job: &stepmuxv1.Job{Script: "echo on"}}, grpc.WaitForReady(true))
		require.NoError(t, err)
		wholeLog(t, m, b.GetId())
	}
	p.start()
	build()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM)) // it writes its indexes
	require.NoError(t, p.cmd.Wait())
	p.stderr.Reset()
	p.start()
	build()
	p.kill()
	require.NotContains(t, p.stderr.String(), "level=WARN", "it was ended in order before")
	p.start()
	build()
	p.kill()
	require.Equal(t, 1, strings.Count(p.stderr.String(), "level=WARN"), &p.stderr)
	require.Contains(t, p.stderr.String(), "the store has rebuilt its indexes from the messages")
}

// A manager is killed at random while builds go through its queue. make prove WHAT=manager-faults does more of it.
func TestAManagerThatIsKilledLosesNothing(t *testing.T) {
	kills := numberFrom(t, "STEPMUX_MANAGER_KILLS", 4)
	builds := numberFrom(t, "STEPMUX_MANAGER_BUILDS", 24)
	vms := numberFrom(t, "STEPMUX_MANAGER_VMS", 2)
	dir := t.TempDir()
	ledger := filepath.Join(dir, "ledger")
	file, ports := newInventory(t, dir, vms)
	p := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound}
	p.args = []string{
		"manager", "--state", filepath.Join(dir, "state"), "--inventory", file, "--socket", p.socket,
		"--log-level", "info",
	}
	defer func() {
		if t.Failed() {
			t.Logf("the log of the managers:\n%s", &p.stderr)
		}
	}()
	p.start()
	defer p.kill()
	conn, err := pb.Dial(p.socket)
	require.NoError(t, err)
	defer conn.Close()
	client := pb.NewManagerClient(conn)

	ids := make([]string, builds)
	most, stop := watchConnections(t, ports)
	defer stop()
	var submitting sync.WaitGroup
	submitting.Go(func() {
		for i := range ids {
			key := fmt.Sprintf("build-%d", i)
			require.Eventually(t, func() bool {
				resp, err := client.Submit(t.Context(), countingJob(key, ledger))
				ids[i] = resp.GetId()
				return err == nil
			}, bound, time.Millisecond)
		}
	})
	random := rand.New(rand.NewPCG(1, uint64(kills))) // no secret
	killed := 0
	for range kills {
		timer := time.NewTimer(time.Duration(random.IntN(400)) * time.Millisecond)
		<-timer.C
		p.kill()
		killed++
		p.start()
	}
	submitting.Wait()
	requireCounted(t, ids, ledger, func(string) pb.ManagerClient { return client })
	require.LessOrEqual(t, most.Load(), int64(1), "connections to a VM at once")
	t.Logf("%d kills, %d builds on %d VMs: none lost, none run twice, each log whole, %d connection to a VM at once",
		killed, builds, vms, most.Load())
}

// wholeLog follows a build to its end, over restarts of the manager.
func wholeLog(t *testing.T, client pb.ManagerClient, id string) (string, *pb.Build) {
	t.Helper()
	var text bytes.Buffer
	b, err := followLog(t.Context(), client, id, true, &text, os.Stderr)
	require.NoError(t, err, id)
	return text.String(), b
}

// withoutRemarks drops the step runner's lines.
func withoutRemarks(text string) string {
	var all strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "step runner: ") {
			all.WriteString(line)
		}
	}
	return all.String()
}

// watchConnections counts the connections to local ports until stop, seen from outside. most is the most to one.
func watchConnections(t *testing.T, ports []string) (most *atomic.Int64, stop func()) {
	t.Helper()
	hex := map[string]bool{}
	for _, port := range ports {
		n, err := strconv.Atoi(port)
		require.NoError(t, err)
		hex[fmt.Sprintf("%04X", n)] = true
	}
	most = &atomic.Int64{}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
			for port, now := range established(hex) {
				if len(now) > 1 { // the table changes while it is read: only connections that are there twice count
					later := established(hex)[port]
					maps.DeleteFunc(now, func(local string, _ bool) bool { return !later[local] })
				}
				most.Store(max(most.Load(), int64(len(now))))
			}
		}
	})
	return most, sync.OnceFunc(func() {
		cancel()
		watching.Wait()
	})
}

// established returns the local ends of the connections to ports, which are in hexadecimal.
func established(ports map[string]bool) map[string]map[string]bool {
	found := map[string]map[string]bool{}
	table, _ := os.ReadFile("/proc/net/tcp")
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line) // number, local, remote, state: proc_pid_net_tcp(5)
		if len(fields) < 4 || fields[3] != "01" {
			continue
		}
		if _, port, ok := strings.Cut(fields[2], ":"); ok && ports[port] {
			if found[port] == nil {
				found[port] = map[string]bool{}
			}
			found[port][fields[1]] = true
		}
	}
	return found
}
