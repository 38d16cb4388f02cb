package instance_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

func sshConfig(s *sshtest.Server) mux.Config {
	return mux.Config{
		User:     s.User,
		Auth:     []login.Auth{login.Key("of the test", s.Signer)},
		HostKeys: login.PinnedHostKeys(s.HostKey),
	}
}

func instanceAt(id string, s *sshtest.Server, jump *instance.Instance) instance.Instance {
	return instance.Instance{ID: id, Addr: s.Addr, SSH: sshConfig(s), Jump: jump}
}

func jumpHost(id string, s *sshtest.Server, jump *instance.Instance) *instance.Instance {
	return &instance.Instance{ID: id, Addr: s.Addr, SSH: sshConfig(s), Jump: jump}
}

func newProvider(t testing.TB, cfg instance.Config, all ...instance.Instance) *instance.Provider {
	t.Helper()
	var err error
	cfg.DialTimeout = sshtest.Bound // on a loaded machine, too
	cfg.Group, err = instance.NewGroup(all...)
	require.NoError(t, err)
	p, err := instance.NewProvider(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// A refused login was printed twice, as a warning of the log and as the failure of the build. That named the machine
// three times before the cause.
//
//stepmux:faults users | An error is printed twice, its remedy last; or without the next command
//stepmux:with mux/login.TestADialErrorSaysItsCauseAndRemedyAtOnce
//stepmux:with mux/login.TestAChangedKeyIsShownWithTheOldOneAndItsLine
//stepmux:with mux/login.TestAServerWithoutACommonAlgorithmIsToldWhichOptionToSet
func TestARefusedLoginIsPrintedOnce(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	in := instanceAt("vm-1", s, nil)
	stranger, _ := sshtest.NewKey(t)
	in.SSH.Auth = []login.Auth{login.Key("mine", stranger)}
	log := &sshtest.Log{}
	warnings := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	end, errs := prepareAll(t, newProvider(t, instance.Config{Logger: warnings}, in), 1)
	defer end()
	require.ErrorContains(t, errs[0], "runner_system_failure: instance vm-1: dial "+s.User+"@"+s.Addr+": login: ")
	require.Empty(t, log.String())
}

// prepareAll gives a build to each of n slots, all at once, and returns a function that ends them.
func prepareAll(t testing.TB, p *instance.Provider, n int) (end func(), errs []error) {
	t.Helper()
	ctx := sshtest.Within(t)
	errs = make([]error, n)
	all := make([]*instance.Executor, n)
	var wg sync.WaitGroup
	for i := range all {
		all[i] = p.Executor(instance.Build{ID: fmt.Sprintf("build-%d", i)})
		wg.Go(func() { errs[i] = all[i].Prepare(ctx) })
	}
	wg.Wait()
	return func() {
		for _, e := range all {
			require.NoError(t, e.Cleanup(ctx))
		}
	}, errs
}

func requireNone(t testing.TB, errs []error) {
	t.Helper()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

var bastions = map[string]func(testing.TB) *sshtest.Server{
	"in-process": func(t testing.TB) *sshtest.Server { return sshtest.InProcess(t, embeddedvm.Config{}) },
	"OpenSSH":    func(t testing.TB) *sshtest.Server { return sshtest.OpenSSH(t, "AllowTcpForwarding local") },
}

func TestFiftyMachinesBehindABastionTakeOneConnectionToIt(t *testing.T) {
	for name, start := range bastions {
		t.Run(name, func(t *testing.T) {
			const n = 50
			bastion := start(t)
			var vms []*sshtest.Server
			var all []instance.Instance
			for i := range n {
				vm := sshtest.InProcess(t, embeddedvm.Config{Addr: fmt.Sprintf("127.0.0.%d:0", i+2)})
				vms = append(vms, vm)
				all = append(all, instanceAt(fmt.Sprintf("vm-%d", i), vm, jumpHost("bastion", bastion, nil)))
			}
			p := newProvider(t, instance.Config{}, all...)
			end, errs := prepareAll(t, p, n)
			requireNone(t, errs)
			total := bastion.TotalConns()
			require.Equal(t, 1, total)
			for _, vm := range vms {
				require.Equal(t, 1, vm.TotalConns())
				total += vm.TotalConns()
			}
			require.Equal(t, n+1, total)
			stat := p.Stat()
			require.Len(t, stat.JumpHosts, 1)
			require.Equal(t, "bastion", stat.JumpHosts[0].ID)
			require.Equal(t, 1, stat.JumpHosts[0].Connections)
			require.Equal(t, n, stat.JumpHosts[0].Conn.Streams)
			end()
			require.NoError(t, p.Shutdown(sshtest.Within(t)))
		})
	}
}

// A build runs the whole way on a machine behind a real bastion.
func TestBuildOnAMachineBehindABastion(t *testing.T) {
	v := newVM(t, sshtest.OpenSSH(t))
	in := v.instance(t, 1)
	bastion := sshtest.OpenSSH(t)
	in.Jump = jumpHost("bastion", bastion, nil)
	log := &sshtest.Log{}
	p := newProvider(t, instance.Config{}, in)
	require.NoError(t, build(sshtest.Within(t), p, "b-1", script("echo by way of a bastion"), log))
	require.Contains(t, log.String(), "by way of a bastion")
	require.Equal(t, 1, bastion.TotalConns())
	require.Equal(t, 1, v.TotalConns())
	v.requireClean(t)
}

// A machine with builds of its own is also the way to others: one connection serves both.
func TestMachineBehindAMachineSharesItsConnection(t *testing.T) {
	bastion, near, far := sshtest.OpenSSH(t), sshtest.OpenSSH(t), sshtest.OpenSSH(t)
	p := newProvider(t, instance.Config{},
		instanceAt("far", far, &instance.Instance{ID: "near"}),
		instanceAt("farther", far, jumpHost("near", near, jumpHost("bastion", bastion, nil))),
		instanceAt("near", near, jumpHost("bastion", bastion, nil)))
	end, errs := prepareAll(t, p, 3)
	requireNone(t, errs)
	require.Equal(t, []int{1, 1, 2}, []int{bastion.TotalConns(), near.TotalConns(), far.TotalConns()})
	end()
}

// More jump hosts than dials at once, all behind one more: a dial that waits for its jump host does not keep
// that from being dialed.
func TestDialsThatWaitForTheirJumpHostsDoNotHoldThemUp(t *testing.T) {
	const n = 12
	bastion := sshtest.InProcess(t, embeddedvm.Config{})
	var all []instance.Instance
	for i := range n {
		middle, vm := sshtest.InProcess(t, embeddedvm.Config{}), sshtest.InProcess(t, embeddedvm.Config{})
		jump := jumpHost(fmt.Sprintf("middle-%d", i), middle, jumpHost("bastion", bastion, nil))
		all = append(all, instanceAt(fmt.Sprintf("vm-%d", i), vm, jump))
	}
	end, errs := prepareAll(t, newProvider(t, instance.Config{}, all...), n)
	requireNone(t, errs)
	require.Equal(t, 1, bastion.TotalConns())
	end()
}

func TestRefusedLoginAtTheBastionIsTriedOnce(t *testing.T) {
	bastion := sshtest.OpenSSH(t)
	jump := jumpHost("bastion", bastion, nil)
	stranger, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	require.NoError(t, err)
	jump.SSH.Auth = []login.Auth{login.Key("stranger", stranger)}
	const n = 10
	var all []instance.Instance
	for i := range n {
		all = append(all, instanceAt(fmt.Sprintf("vm-%d", i), sshtest.InProcess(t, embeddedvm.Config{}), jump))
	}
	end, errs := prepareAll(t, newProvider(t, instance.Config{}, all...), n)
	for _, err := range errs {
		requireReason(t, err, instance.RunnerSystemFailure, 0)
		require.ErrorContains(t, err, "through jump host bastion")
		require.ErrorContains(t, err, "refused key stranger")
		require.ErrorContains(t, err, bastion.Addr)
	}
	require.Equal(t, 1, bastion.TotalConns())
	end()
}

// What is behind the same bastion is not worth a try.
func TestBuildWhoseBastionCannotBeReachedGoesWhereNoneIsNeeded(t *testing.T) {
	bastion, vm := sshtest.OpenSSH(t), sshtest.InProcess(t, embeddedvm.Config{})
	jump := jumpHost("bastion", bastion, nil)
	stranger, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	require.NoError(t, err)
	jump.SSH.Auth = []login.Auth{login.Key("stranger", stranger)}
	all := []instance.Instance{instanceAt("direct", vm, nil)}
	for i := range 5 {
		in := instanceAt(fmt.Sprintf("vm-%d", i), vm, jump)
		in.Capacity = 2 // they come first
		all = append(all, in)
	}
	p := newProvider(t, instance.Config{}, all...)
	end, errs := prepareAll(t, p, 1)
	requireNone(t, errs)
	quarantined := 0
	for _, in := range p.Stat().Instances {
		if in.State == instance.Quarantined {
			quarantined++
		}
	}
	require.Equal(t, 1, quarantined)
	require.Equal(t, 1, statOf(p, "direct").Used)
	end()
}

func TestBastionThatIsLostIsReachedAgain(t *testing.T) {
	bastion, vm := sshtest.InProcess(t, embeddedvm.Config{}), sshtest.InProcess(t, embeddedvm.Config{})
	p := newProvider(t, instance.Config{}, instanceAt("vm", vm, jumpHost("bastion", bastion, nil)))
	end, errs := prepareAll(t, p, 1)
	requireNone(t, errs)
	bastion.VM.CutAll()
	end()
	require.Eventually(t, func() bool { // once the loss is known
		end, errs = prepareAll(t, p, 1)
		end()
		return errs[0] == nil && bastion.TotalConns() == 2
	}, sshtest.Bound, time.Millisecond)
	require.Equal(t, 2, vm.TotalConns())
}

// The way to a machine is idle only when the machine's connection has ended.
func TestBastionsConnectionOutlivesThoseBehindIt(t *testing.T) {
	bastion, vm := sshtest.InProcess(t, embeddedvm.Config{}), sshtest.InProcess(t, embeddedvm.Config{})
	log := &sshtest.Log{}
	p := newProvider(t, instance.Config{
		IdleTimeout: 20 * time.Millisecond,
		Logger:      slog.New(slog.NewTextHandler(log, nil)),
	}, instanceAt("vm", vm, jumpHost("bastion", bastion, nil)))
	end, errs := prepareAll(t, p, 1)
	requireNone(t, errs)
	end()
	log.Await(t, `leaves service" instance=bastion reason="connection was idle"`)
	text := []byte(log.String())
	vmLeaves := bytes.Index(text, []byte(`leaves service" instance=vm`))
	require.Less(t, vmLeaves, bytes.Index(text, []byte(`leaves service" instance=bastion`)))
	require.NotContains(t, log.String(), "lost")
	require.Equal(t, 1, bastion.TotalConns())
}

func TestJumpHostsThatCannotBeAreRefused(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	loop := jumpHost("a", s, nil)
	loop.Jump = jumpHost("b", s, loop)
	var long *instance.Instance
	for i := range 9 {
		long = jumpHost(fmt.Sprintf("hop-%d", i), s, long)
	}
	other := jumpHost("bastion", s, nil)
	other.Addr = "127.0.0.1:1"
	for want, all := range map[string][]instance.Instance{
		"loop of them": {instanceAt("vm", s, loop)},
		"form a loop: vm-[12] -> vm-[12] -> vm-[12]": {
			instanceAt("vm-1", s, &instance.Instance{ID: "vm-2"}), instanceAt("vm-2", s, &instance.Instance{ID: "vm-1"}),
		},
		"form a loop: vm -> vm":      {instanceAt("vm", s, &instance.Instance{ID: "vm"})},
		"more than 8":                {instanceAt("vm", s, long)},
		"a jump host has no ID":      {instanceAt("vm", s, jumpHost("", s, nil))},
		"no address and is no":       {instanceAt("vm", s, &instance.Instance{ID: "bastion"})},
		"give each an ID of its own": {instanceAt("vm-1", s, jumpHost("bastion", s, nil)), instanceAt("vm-2", s, other)},
		"or reached in two ways: give": {
			instanceAt("vm-1", s, jumpHost("b", s, nil)), instanceAt("vm-2", s, jumpHost("b", s, jumpHost("a", s, nil))),
		},
	} {
		_, err := instance.NewGroup(all...)
		require.Error(t, err, want)
		require.Regexp(t, want, err.Error())
	}
}

// Machines come and go at one address; each is trusted by its identity, and forgotten when it is gone.
func TestMachinesThatComeAndGoAreTrustedByIdentity(t *testing.T) {
	store := filepath.Join(t.TempDir(), "first-use")
	keys, err := login.FirstUse(store)
	require.NoError(t, err)
	client, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	require.NoError(t, err)
	addr := ""
	start := func() *embeddedvm.Server {
		vm, err := embeddedvm.Start(embeddedvm.Config{Addr: addr, AuthorizedKeys: []ssh.PublicKey{client.PublicKey()}})
		require.NoError(t, err)
		t.Cleanup(func() { vm.Close() })
		addr = vm.Addr()
		return vm
	}
	at := func(id string) instance.Instance {
		return instance.Instance{
			ID:   id,
			Addr: addr,
			SSH:  mux.Config{User: "ci", Auth: []login.Auth{login.Key("k", client)}, HostKeys: keys},
		}
	}
	vm := start()
	p := newProvider(t, instance.Config{}, at("i-0"))
	for i := range 20 {
		id := fmt.Sprintf("i-%d", i)
		end, errs := prepareAll(t, p, 1)
		requireNone(t, errs)
		end()
		text, err := os.ReadFile(store)
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), "\n"))
		require.Contains(t, string(text), id+" ")
		require.NoError(t, p.Remove(t.Context(), id))
		require.NoError(t, vm.Close())
		vm = start()
		require.NoError(t, p.Add(at(fmt.Sprintf("i-%d", i+1))))
	}
	end, errs := prepareAll(t, p, 1)
	requireNone(t, errs)
	end()
	require.NoError(t, vm.Close())
	start() // another machine that says it is the same
	require.Eventually(t, func() bool {
		end, errs = prepareAll(t, p, 1) // once the loss of the connection is known
		end()
		return errs[0] != nil
	}, sshtest.Bound, time.Millisecond)
	requireReason(t, errs[0], instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, errs[0], "HOST KEY CHANGED: machine i-20")
	require.ErrorContains(t, p.Remove(t.Context(), "i-1"), `there is no instance "i-1"`)
	require.ErrorContains(t, p.Add(at("i-20")), "two of this ID")
}

func TestBuildThatWaitsGetsTheSlotOfAnAddedMachine(t *testing.T) {
	one, two := sshtest.InProcess(t, embeddedvm.Config{}), sshtest.InProcess(t, embeddedvm.Config{})
	p := newProvider(t, instance.Config{}, instanceAt("one", one, nil))
	end, errs := prepareAll(t, p, 1)
	requireNone(t, errs)
	waits := p.Executor(instance.Build{ID: "waits"})
	done := make(chan error, 1)
	go func() { done <- waits.Prepare(sshtest.Within(t)) }()
	require.NoError(t, p.Remove(t.Context(), "one"))
	end() // gives no slot to anybody: the VM is gone
	require.NoError(t, p.Add(instanceAt("two", two, nil)))
	require.NoError(t, <-done)
	require.Equal(t, "two", waits.Instance())
	require.NoError(t, waits.Cleanup(context.WithoutCancel(t.Context())))
}
