package manager_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/standalone/managed"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// stoppedLease is that of managers which a test stops for longer.
const stoppedLease = 3 * time.Second

// processVar has the memberConfig of a manager in a process of its own.
const processVar = "STEPMUX_TEST_MANAGER"

// memberConfig is a fleet, for a manager in a process of its own.
type memberConfig struct {
	NATS, Key, Dir, Temp string
	Capacity             int
	Runner               []string
	VMs                  []memberVM
}

type memberVM struct{ Addr, User, Identity, HostKey string }

// memberProcess is a manager of a cluster in a process of its own.
type memberProcess struct {
	running
	process *os.Process
	log     *awaitedLine // has seen that it leaves its VMs
	end     func()       // ends it, and waits for that
	kill    func()
}

// The manager of a memberProcess. It ends with its standard input.
func TestAManagerInAProcessOfItsOwn(t *testing.T) {
	text := os.Getenv(processVar)
	if text == "" {
		return
	}
	var c memberConfig
	require.NoError(t, json.Unmarshal([]byte(text), &c))
	f := &fleet{tmp: c.Temp, dir: c.Dir, capacity: c.Capacity, command: c.Runner}
	for i, vm := range c.VMs {
		identity, err := os.ReadFile(vm.Identity)
		require.NoError(t, err)
		s := &sshtest.Server{Addr: vm.Addr, User: vm.User}
		s.Signer, err = ssh.ParsePrivateKey(identity)
		require.NoError(t, err)
		s.HostKey, _, _, _, err = ssh.ParseAuthorizedKey([]byte(vm.HostKey))
		require.NoError(t, err)
		*[]**sshtest.Server{&f.vm, &f.more}[i] = s
	}
	f.change = func(cfg *manager.Config) {
		cfg.NATS, cfg.KeyFile, cfg.Lease = &state.NATS{URLs: []string{"nats://" + c.NATS}}, c.Key, stoppedLease
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		cfg.Pipelines = managed.Pipelines{}
	}
	m := f.start(t)
	fmt.Println("listens at", m.socket) //nolint:forbidigo // for the test that has started it
	_, err := io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
}

// process starts a manager in a process of its own.
func (c *cluster) process(t *testing.T) *memberProcess {
	t.Helper()
	cfg := memberConfig{
		NATS: c.nats, Key: c.key, Dir: filepath.Join(t.TempDir(), "state"), Temp: c.tmp, Capacity: c.capacity,
		Runner: runnertest.Command(t),
	}
	for _, vm := range []*sshtest.Server{c.vm, c.more} {
		if vm != nil {
			key := string(ssh.MarshalAuthorizedKey(vm.HostKey))
			cfg.VMs = append(cfg.VMs, memberVM{vm.Addr, vm.User, vm.IdentityFile, key})
		}
	}
	text, err := json.Marshal(cfg)
	require.NoError(t, err)
	p := &memberProcess{log: &awaitedLine{text: "the manager leaves its VMs", seen: make(chan struct{})}}
	cmd := exec.Command(os.Args[0], "-test.run=^TestAManagerInAProcessOfItsOwn$")
	cmd.Env = append(os.Environ(), processVar+"="+string(text))
	var said bytes.Buffer
	cmd.Stderr = io.MultiWriter(&said, p.log)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p.process = cmd.Process
	var over sync.Once
	p.end = func() {
		over.Do(func() {
			_ = p.process.Signal(syscall.SIGCONT)
			_ = stdin.Close()
			_, _ = io.Copy(io.Discard, stdout)
			require.NoError(t, cmd.Wait(), "%s", &said)
		})
	}
	p.kill = func() {
		over.Do(func() {
			_ = p.process.Kill()
			_ = cmd.Wait() // it was killed
		})
	}
	t.Cleanup(p.end)
	t.Cleanup(func() {
		if t.Failed() {
			p.end()
			t.Logf("the log of a manager:\n%s", &said)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	conn, err := pb.Dial(strings.TrimSpace(strings.TrimPrefix(line, "listens at ")))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	p.running = running{ManagerClient: pb.NewManagerClient(conn), t: t}
	return p
}

// acks are the acknowledgments of a request that NATS has got.
type acks struct {
	nc   *nats.Conn
	told chan struct{} // has an element after each

	mu  sync.Mutex // guards the following
	all []ack
}

// ack is an acknowledgment of a delivery, which has a number.
type ack struct {
	delivery int
	text     string
}

// watchAcks watches the acknowledgments of the request of a build.
func (c *cluster) watchAcks(t *testing.T, id string) *acks {
	t.Helper()
	nc, err := nats.Connect("nats://" + c.nats)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	a := &acks{nc: nc, told: make(chan struct{}, 1)}
	place, _, _ := strings.Cut(id, "-")
	_, err = nc.Subscribe("$JS.ACK.STEPMUX_QUEUE.manager.*."+place+".>", func(msg *nats.Msg) {
		delivery, err := strconv.Atoi(strings.Split(msg.Subject, ".")[4])
		assert.NoError(t, err)
		a.mu.Lock()
		a.all = append(a.all, ack{delivery, string(msg.Data)})
		a.mu.Unlock()
		select {
		case a.told <- struct{}{}:
		default:
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return a
}

// await waits for a sign of life of this delivery or a later one, and returns its number.
func (a *acks) await(t *testing.T, least int) (delivery int) {
	t.Helper()
	for end := time.After(sshtest.Bound); ; { //nolint:forbidigo // a test's bound
		a.mu.Lock()
		for _, ack := range a.all {
			if ack.text == "+WPI" {
				delivery = max(delivery, ack.delivery)
			}
		}
		a.mu.Unlock()
		if delivery >= least {
			return delivery
		}
		select {
		case <-a.told:
		case <-end:
			require.FailNow(t, "no other manager has the build")
		}
	}
}

// forget forgets the acknowledgments so far.
func (a *acks) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = nil
}

// end returns the acknowledgments that NATS has got.
func (a *acks) end(t *testing.T) []ack {
	t.Helper()
	require.NoError(t, a.nc.Flush())
	require.NoError(t, a.nc.Drain())
	require.Eventually(t, a.nc.IsClosed, sshtest.Bound, time.Millisecond)
	return a.all
}

// A manager that was stopped for longer than its lease acknowledged requests that the queue had handed out again, and
// the queue obeyed: an InProgress kept the request for the other manager, even if that one was dead, and a Nak handed
// it out once more, at once.
//
//stepmux:faults users | A late acknowledgement counts for the delivery that another manager has
//stepmux:with instance/manager.TestARequestThatWasReadTooLateIsLeftToAnotherManager
func TestAManagerThatWasStoppedAcknowledgesNothingThatAnotherHas(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		ended bool // before the first manager goes on
	}{
		{"InProgress and Nak of a build that runs", false},
		{"InProgress, Nak and Ack of a build that has ended", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.more = nil
			ledger := filepath.Join(t.TempDir(), "ledger")
			wait, open := gate(t)
			first := c.process(t)
			id := first.submit(fmt.Sprintf("echo ran >>%s\necho begun\n%s\necho done", ledger, wait))
			seen := c.watchAcks(t, id)
			first.await(id, "begun\n")
			second := c.process(t)
			require.NoError(t, first.process.Signal(syscall.SIGSTOP))
			seconds := seen.await(t, 2)
			finish := func() {
				open()
				text, b := second.wait(id, 0)
				require.Equal(t, "begun\ndone\n", text)
				require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
			}
			if test.ended {
				finish()
			}
			seen.forget()
			require.NoError(t, first.process.Signal(syscall.SIGCONT))
			<-first.log.seen
			first.end() // it has sent all that it had to send
			if !test.ended {
				finish()
			}
			second.end()
			for _, ack := range seen.end(t) {
				require.GreaterOrEqual(t, ack.delivery, seconds, "%q is late", ack.text)
			}
			ran, err := os.ReadFile(ledger)
			require.NoError(t, err)
			require.Equal(t, "ran\n", string(ran))
		})
	}
}

// A request can come to a manager that is stopped, which reads it when another manager has it already.
func TestARequestThatWasReadTooLateIsLeftToAnotherManager(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.more = nil
	m := c.member(t, c.nats)
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}}) // it gives requests back
	require.NoError(t, err)
	id := m.submit("true")
	seen := c.watchAcks(t, id)
	delivery, taken := m.m.AcceptLate(t)
	require.False(t, taken, "it begins the build")
	for _, ack := range seen.end(t) {
		require.NotEqual(t, delivery, ack.delivery, ack.text)
	}
}

// One of two managers of a cluster is killed while pipelines run: the other one goes on with them.
func TestAnotherManagerGoesOnWithPipelines(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	first, second := c.process(t), c.process(t)
	line, times := ran(t)
	wait, open := gate(t)
	ids, begun, wanted := []string{}, map[string]int{}, map[string]int{}
	for i, m := range []*memberProcess{first, second, first, second} {
		job := func(name string) string { return fmt.Sprintf("%d.%s", i, name) }
		ids = append(ids, m.submitPipeline(pipelineOf(t, fmt.Sprintf(`
stages: [one, two, three]
a: {stage: one, script: [%q, %q, echo V=5 > v.env, echo 5 > f], artifacts: {paths: [f], reports: {dotenv: v.env}}}
b: {stage: two, parallel: 2, script: [%q, 'test "$(cat f)" = "$V"']}
c: {stage: two, script: [%q, exit 1], retry: 1, allow_failure: true}
m: {stage: two, script: [%q], when: manual, allow_failure: false}
d: {stage: three, script: [%q, 'test "$(cat f)" = 5'], resource_group: one}
`, line(job("a")), wait, line(job("b")), line(job("c")), line(job("m")), line(job("d"))))))
		begun[job("a")] = 1
		for name, n := range map[string]int{"a": 1, "b": 2, "c": 2, "m": 1, "d": 1} {
			wanted[job(name)] = n
		}
	}
	eventually(t, func() bool { return maps.Equal(begun, times()) })
	first.kill()
	open()
	for _, id := range ids {
		_, err := second.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "m"})
		require.NoError(t, err)
	}
	for _, id := range ids {
		require.Equal(t, "success", second.restOf(id).GetStatus())
	}
	require.Equal(t, wanted, times(), "each attempt of each job ran once")
}
