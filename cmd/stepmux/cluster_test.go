package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// member is a process of a cluster: a manager or a NATS server.
type member interface {
	start()
	kill()
}

// natsProcess is a NATS server that is killed and started again.
type natsProcess struct {
	t    *testing.T
	args []string
	addr string
	log  bytes.Buffer
	cmd  *exec.Cmd
}

// newNATS returns the servers of a cluster, which are not started.
func newNATS(t *testing.T, n int) (servers []*natsProcess, urls string) {
	t.Helper()
	runnertest.NATSServer(t) // it is built now, so that the ports are free for a short time only
	var routes, clients, ports []string
	for range 2 * n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		ports = append(ports, listener.Addr().String())
	}
	for i := range n {
		routes, clients = append(routes, "nats://"+ports[i]), append(clients, "nats://"+ports[n+i])
	}
	for i := range n {
		dir := t.TempDir()
		config := fmt.Sprintf("server_name: n%d\nlisten: %q\nmax_payload: 8MB\n"+
			"jetstream { store_dir: %q, sync_interval: always, max_file_store: 1TB }\n"+
			"cluster { name: c, listen: %q, routes: [%s] }\n", i, ports[n+i], dir, ports[i], strings.Join(routes, ", "))
		file := filepath.Join(dir, "nats.conf")
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		servers = append(servers, &natsProcess{t: t, args: []string{"-c", file}, addr: ports[n+i]})
	}
	return servers, strings.Join(clients, ",")
}

func (p *natsProcess) start() {
	p.cmd = exec.Command(runnertest.NATSServer(p.t), p.args...)
	p.cmd.Stderr = &p.log
	require.NoError(p.t, p.cmd.Start())
}

func (p *natsProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// startManagers starts managers of an inventory with these arguments. They have one key.
func startManagers(t *testing.T, dir, inventory string, n int, args ...string) (
	managers []*managerProcess, clients []pb.ManagerClient,
) {
	t.Helper()
	for i := range n {
		p := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: 4 * bound}
		p.args = append([]string{
			"manager", "--state", filepath.Join(dir, fmt.Sprintf("state-%d", i)), "--inventory", inventory,
			"--socket", p.socket, "--key-file", filepath.Join(dir, "key"), "--log-level", "info",
		}, args...)
		t.Cleanup(func() { // it was killed
			if t.Failed() || os.Getenv("STEPMUX_CLUSTER") != "" {
				t.Logf("the log of manager %d:\n%s", i, &p.stderr)
			}
		})
		p.start()
		t.Cleanup(p.kill)
		conn, err := pb.Dial(p.socket)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		managers, clients = append(managers, p), append(clients, pb.NewManagerClient(conn))
	}
	return managers, clients
}

// One of three managers and three NATS servers is killed every five seconds, and started again two seconds later, while
// builds and pipelines go through their queue. make prove WHAT=cluster does it for long.
func TestAClusterWhoseMembersAreKilledLosesNothing(t *testing.T) {
	t.Parallel()
	duration, vms, outstanding := time.Second, 2, 6 // one of them is killed
	if text := os.Getenv("STEPMUX_CLUSTER"); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err)
		vms, outstanding = 6, 60
	}
	const each = 3
	dir := t.TempDir()
	ledger := filepath.Join(dir, "ledger")
	file, ports := newInventory(t, dir, vms)
	servers, urls := newNATS(t, each)
	var members []member
	for _, s := range servers {
		s.start()
		t.Cleanup(s.kill)
		members = append(members, s)
	}
	managers, clients := startManagers(t, dir, file, each, "--nats", urls)
	for _, p := range managers {
		members = append(members, p)
	}
	most, stop := watchConnections(t, ports)
	defer stop()
	pipelines, pipelined := map[string]string{}, filepath.Join(dir, "pipelined")
	for i, client := range clients {
		for _, kind := range []string{"", "w"} { // the workflows share a concurrency group
			key := kind + strconv.Itoa(i)
			resp, err := client.SubmitPipeline(t.Context(), countingPipeline(t, key, pipelined))
			require.NoError(t, err)
			pipelines[key] = resp.GetId()
		}
	}

	var ids []string
	over := make(chan struct{})
	var submitting sync.WaitGroup
	submitting.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
			}
			key := fmt.Sprintf("build-%d", i)
			require.Eventually(t, func() bool {
				resp, err := clients[i%each].Submit(t.Context(), countingJob(key, ledger))
				if err == nil {
					ids = append(ids, resp.GetId())
				}
				return err == nil
			}, 2*time.Minute, 10*time.Millisecond)
			if i >= outstanding { // the queue is neither empty nor long
				_, _ = followLog(t.Context(), clients[i%each], ids[i-outstanding], true, io.Discard, io.Discard) // read again below
			}
		}
	})
	random := rand.New(rand.NewPCG(1, 2)) // no secret
	kills, killed := 0, map[string]int{}
	up := make([]chan struct{}, len(members)) // closed when it is up
	for i := range up {
		up[i] = make(chan struct{})
		close(up[i])
	}
	var starting sync.WaitGroup
	for end := time.Now().Add(duration); time.Now().Before(end); {
		wait(t, 5*time.Second)
		i := random.IntN(len(members))
		select {
		case <-up[i]:
		default:
			continue // it is not up yet
		}
		kills++
		killed[fmt.Sprintf("%T", members[i])]++
		members[i].kill()
		t.Logf("%s: killed %T %d", time.Now().Format(time.TimeOnly), members[i], i%each)
		again := make(chan struct{})
		up[i] = again
		starting.Go(func() {
			defer close(again)
			wait(t, 2*time.Second)
			members[i].start()
		})
	}
	starting.Wait()
	close(over)
	submitting.Wait()
	requireCounted(t, ids, ledger, func(id string) pb.ManagerClient { return clients[len(id)%each] })
	requirePipelines(t, pipelines, pipelined, func(key string) pb.ManagerClient { return clients[(int(key[0])+1)%each] })
	require.LessOrEqual(t, most.Load(), int64(1), "connections to a VM at once")
	t.Logf("%d kills (%v), %d builds on %d VMs: none lost, none run twice, each log whole, %d connection to a VM at once",
		kills, killed, len(ids), vms, most.Load())
}

// wait waits for a time.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// What a cluster that is left alone carries, and one manager with the same VMs, in turn.
func TestMeasureACluster(t *testing.T) {
	builds, rounds := 12, 1
	if text := os.Getenv("STEPMUX_SCALE_CLUSTER"); text != "" {
		_, err := fmt.Sscan(text, &builds)
		require.NoError(t, err)
		rounds = 3
	}
	file, _ := newInventory(t, t.TempDir(), 2)
	servers, urls := newNATS(t, 3)
	for _, s := range servers {
		s.start()
		t.Cleanup(s.kill)
	}
	_, alone := startManagers(t, t.TempDir(), file, 1)
	_, cluster := startManagers(t, t.TempDir(), file, 3, "--nats", urls)
	var byOne, byAll time.Duration
	for range rounds {
		byOne += throughQueue(t, alone, builds)
		byAll += throughQueue(t, cluster, builds)
	}
	rate := func(took time.Duration) float64 { return float64(builds*rounds) / took.Seconds() }
	t.Logf("%d builds from the queue, 8 at once on 2 VMs: %.1f a second by one manager; %.1f by 3 of them with 3 NATS "+
		"servers: %.2f of it", builds*rounds, rate(byOne), rate(byAll), rate(byAll)/rate(byOne))
}

// throughQueue returns how long builds of nothing that wait in the queue take together.
func throughQueue(t *testing.T, managers []pb.ManagerClient, builds int) time.Duration {
	t.Helper()
	vms := []string{"vm-0", "vm-1"}
	_, err := managers[0].Drain(t.Context(), &pb.DrainRequest{Instances: vms})
	require.NoError(t, err)
	var ids []string
	for i := range builds {
		resp, err := managers[i%len(managers)].Submit(t.Context(), &pb.SubmitRequest{Job: &stepmuxv1.Job{
			Steps: []byte("run:\n- name: n\n  script: 'true'\n"), StepsFile: "nothing.yml",
		}})
		require.NoError(t, err)
		ids = append(ids, resp.GetId())
	}
	start := time.Now()
	_, err = managers[0].Undrain(t.Context(), &pb.UndrainRequest{Instances: vms})
	require.NoError(t, err)
	for _, id := range ids[max(0, builds-16):] { // the last ones end last
		require.Eventually(t, func() bool {
			b, err := managers[0].Get(t.Context(), &pb.GetRequest{Id: id})
			return err == nil && b.GetPhase() == pb.Build_ended
		}, time.Hour, 20*time.Millisecond)
	}
	return time.Since(start)
}
