package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// defaultTimeout bounds the examination of one instance.
const defaultTimeout = 60 * time.Second

// slowLogin is the longest login that does not get a warning.
const slowLogin = 2 * time.Second

// The checks, in the order of a report.
const (
	checkLogin       = "login"
	checkHostKey     = "host key"
	checkServer      = "server"
	checkKeepalive   = "keepalive"
	checkShell       = "login shell"
	checkBinary      = "binary"
	checkTemp        = "tmp"
	checkClock       = "clock"
	checkTools       = "tools"
	checkKeys        = "keys"
	checkLinger      = "linger"
	checkRelay       = "relay"
	checkStreamlocal = "streamlocal"
	checkIsolation   = "isolation"
	checkLimits      = "limits"
	checkSessions    = "sessions"
	checkDocker      = "docker"
)

// Config configures Examine.
type Config struct {
	// Version is this program's version. If it is not empty, the VM's version is compared with it.
	Version string
	// Docker is the address of a Docker daemon on the VM. If not nil, the VM is examined for builds in containers,
	// which need no stepmux on the VM, no shell and no sessions.
	Docker *docker.Address
	// Bootstrap are programs that may be uploaded to the VM, as a build would have them uploaded. The VM's end that a
	// build would use is then examined.
	Bootstrap []*program.Binary
	// Timeout bounds the examination of one instance, and before it each attempt to connect. If zero, 60s.
	Timeout time.Duration
	// Again is called when an instance refuses a connection in a way that may pass; see [instance.MayPass]. It may wait,
	// and returns true for another attempt. If nil, there is one.
	Again func(ctx context.Context, err error) bool
	// Silent is called when an instance has not answered an attempt to connect for some seconds; the attempt goes on. It
	// is called on another goroutine, and may be nil.
	Silent func()
}

// silence is the time after which Config.Silent is called.
const silence = 5 * time.Second

// Examine examines an instance of p's Group. It makes two connections one after the other, in the same way as p, and
// runs commands. They leave nothing on the VM except the login files that the first build's isolation would make, and a
// program of Bootstrap.
// When ctx ends or the time is up, it returns the findings so far.
func Examine(ctx context.Context, p *instance.Provider, in instance.Instance, cfg Config) Report {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	_ = in.Check() // nil: the group has checked them
	start := time.Now()
	e := &examination{provider: p, in: in, cfg: cfg, report: Report{Instance: in.ID, Addr: in.Addr, User: in.SSH.User}}
	e.examine(ctx)
	e.report.finish(time.Since(start))
	return e.report
}

// examination is one call of Examine.
type examination struct {
	provider *instance.Provider
	in       instance.Instance
	cfg      Config
	report   Report
	conn     *mux.Conn
	rtt      time.Duration

	ran     bool // a command has been run
	single  bool // the server allows one session in the life of a connection
	works   bool // a step runner could be started
	relay   bool // it was started by a relay
	forward bool // it can be reached by streamlocal
}

func (e *examination) examine(ctx context.Context) {
	if !e.login(ctx) {
		return
	}
	defer func() { e.conn.Close() }() // another one by then, perhaps
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Timeout)
	defer cancel()
	e.report.add(judgeServer(e.conn.Stat().ServerVersion))
	e.keepalive(ctx)
	if e.cfg.Docker != nil {
		e.docker(ctx)
		return
	}
	if !e.shell(ctx) {
		e.report.skip("no command can be run", checkBinary, checkTemp, checkClock, checkTools, checkRelay, checkStreamlocal,
			checkIsolation, checkLimits, checkSessions)
		return
	}
	e.binary(ctx)
	e.facts(ctx)
	e.linger(ctx) // before a relay takes a session: the server may allow only one
	e.routes(ctx)
	e.sessions(ctx)
}

// login connects, and judges each phase.
func (e *examination) login(ctx context.Context) bool {
	var mu sync.Mutex // the hooks may run on another goroutine
	var key hostKey
	var heard bool // the server has answered
	took := map[string]time.Duration{}
	trace := &mux.Trace{
		DialPhase: func(phase string, d time.Duration, _ error) {
			mu.Lock()
			defer mu.Unlock()
			took[phase] += d
			heard = heard || phase == "handshake"
		},
		HostKey: func(k ssh.PublicKey, by string, _ error) {
			mu.Lock()
			defer mu.Unlock()
			key = hostKey{k, by}
		},
	}
	dial := func() (*mux.Conn, time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, e.cfg.Timeout)
		defer cancel()
		mu.Lock()
		clear(took)
		heard = false
		mu.Unlock()
		start := time.Now()
		if e.cfg.Silent != nil {
			timer := time.AfterFunc(silence, func() {
				mu.Lock()
				defer mu.Unlock()
				if !heard {
					e.cfg.Silent()
				}
			})
			defer timer.Stop()
		}
		conn, err := e.provider.Dial(ctx, e.in.ID, trace)
		mu.Lock()
		heard = true // so Silent is not called any more
		mu.Unlock()
		return conn, time.Since(start), err
	}
	conn, all, err := dial()
	for err != nil && e.cfg.Again != nil && instance.MayPass(err) && e.cfg.Again(ctx, err) {
		conn, all, err = dial()
	}
	mu.Lock()
	defer mu.Unlock()
	if err != nil {
		e.refused(err, key)
		return false
	}
	e.conn = conn
	f := okay(checkLogin, fmt.Sprintf("%v (connect %v, key exchange %v, login %v)",
		round(all), round(took["connect"]), round(took["handshake"]), round(took["login"])))
	if took["login"] > slowLogin {
		f = warning(checkLogin, f.Detail, e.sshd("find the delay: set UseDNS no and GSSAPIAuthentication no in sshd_config, "+
			"check PAM modules that ask a network", "find the delay: does the server ask a network for names?"),
			"the first build on the VM starts that much sooner")
	}
	e.report.add(f)
	e.hostKeyFine(key)
	return true
}

// hostKey is the key that the server has shown, and the policy that accepted it.
type hostKey struct {
	ssh.PublicKey
	by string
}

// compareKeys is the advice for a host key that is not known, or is another than before. key may be nil.
func compareKeys(key ssh.PublicKey) string {
	kind := "ed25519"
	switch {
	case key == nil:
	case key.Type() == ssh.KeyAlgoRSA:
		kind = "rsa"
	case strings.HasPrefix(key.Type(), "ecdsa-"):
		kind = "ecdsa"
	}
	return "compare the key with the one on the machine's console (ssh-keygen -lf /etc/ssh/ssh_host_" + kind +
		"_key.pub); then make it known"
}

// refused reports why there is no connection.
func (e *examination) refused(err error, key hostKey) {
	f := failure(checkLogin, err.Error(), "")
	refused := (*mux.DialError)(nil)
	stage := ""
	if errors.As(err, &refused) {
		stage = refused.Stage
		f = failure(checkLogin, fmt.Sprintf("%s: %v", stage, refused.Err), refused.Hint)
		if jump := (*mux.DialError)(nil); errors.As(refused.Err, &jump) { // the failure was at a jump host
			hint := jump.Hint
			if jump.Stage == "host key" {
				hint = compareKeys(nil)
			}
			f.Change = strings.TrimSuffix(fmt.Sprintf("at the jump host %s@%s: %s", jump.User, jump.Addr, hint), ": ")
		}
	}
	switch stage {
	case "host key":
		f.Check = checkHostKey
		f.Change = cmp.Or(f.Change, compareKeys(key.PublicKey))
		e.report.skip("the host key was not accepted", checkLogin)
		e.report.add(f)
	case "login":
		if strings.Contains(refused.Err.Error(), "attempted methods [none]") {
			f = failure(checkLogin, "the server takes no keys, only other ways to log in",
				"PubkeyAuthentication yes in sshd_config, and no AuthenticationMethods without publickey")
		}
		e.report.add(f)
		e.hostKeyFine(key)
	default:
		e.report.add(f)
		e.report.skip("no connection", checkHostKey)
	}
	e.report.skip("not logged in", checkServer, checkKeepalive, checkShell, checkBinary, checkTemp, checkClock, checkTools,
		checkRelay, checkStreamlocal, checkIsolation, checkLimits, checkSessions)
}

// hostKeyFine reports the accepted host key, and the policy that accepted it.
func (e *examination) hostKeyFine(key hostKey) {
	if key.PublicKey == nil {
		e.report.skip("the server showed none", checkHostKey)
		return
	}
	f := okay(checkHostKey, fmt.Sprintf("%s %s, accepted by %s", key.Type(), ssh.FingerprintSHA256(key), key.by))
	if key.by == login.InsecurePolicy {
		f = warning(checkHostKey, f.Detail, "--host-key known-hosts or another policy, or host_keys: in the inventory",
			"no machine on the network can pose as the VM")
	}
	e.report.add(f)
}

// keepalive checks whether, and how fast, the server answers keepalives.
func (e *examination) keepalive(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for range 3 { // the first may be delayed by the rest of the login
		rtt, err := e.conn.Ping(ctx)
		if err != nil {
			e.report.add(failure(checkKeepalive, err.Error(),
				"the server must answer a request or a channel that it does not know, if only with a refusal (RFC 4254)"))
			return
		}
		if e.rtt == 0 || rtt < e.rtt {
			e.rtt = rtt
		}
	}
	e.report.add(okay(checkKeepalive, fmt.Sprintf("answered in %v", round(e.rtt))))
}

// routes starts a step runner as a build would, and reports the routes that work.
func (e *examination) routes(ctx context.Context) {
	told, tellErr := e.tryIsolation(ctx)
	if e.single {
		if err := e.renew(ctx); err != nil {
			e.notStarted(err)
			e.report.skip("there is no step runner to ask", checkIsolation, checkLimits)
			return
		}
	}
	var id [6]byte
	_, _ = rand.Read(id[:]) // never fails
	vm, options := &connector.VM{}, e.in.Options
	options.Limits, options.Linger = vmconfig.Limits{}, 0 // tryIsolation has tried the limits
	c, err := connector.New(connector.Config{
		Lease:        unshared{e.conn},
		VM:           vm,
		BuildID:      "doctor-" + hex.EncodeToString(id[:]),
		Runner:       e.in.Runner,
		Options:      options,
		ReadyTimeout: 15 * time.Second,
	})
	if err != nil {
		e.report.add(failure(checkRelay, err.Error(), ""))
		return
	}
	start := time.Now()
	_, err = c.Connect(ctx)
	took := time.Since(start)
	choice := c.Choice()
	// A time of its own: the step runner must be ended even if the examination's time is up.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	closed := c.Close(end)
	switch {
	case err != nil:
		e.notStarted(err)
		e.report.skip("there is no step runner to ask", checkIsolation, checkLimits)
		return
	case closed != nil:
		e.report.add(failure(checkRelay, fmt.Sprintf("a step runner was started, and did not end: %v", closed), ""))
		e.report.skip("there is no step runner to ask", checkIsolation, checkLimits)
		return
	}
	e.works = true
	e.instead(vm.Program())
	e.relay = choice.Start == connector.Relay
	e.forward = choice.Bridge == connector.Streamlocal
	e.report.add(e.judgeRelay(choice, took))
	e.report.add(e.judgeStreamlocal(choice))
	e.report.add(e.judgeIsolation(vm.Program(), told, tellErr))
	e.report.add(e.judgeLimits(vm.Program(), told, tellErr))
}

// docker queries the VM's Docker daemon.
func (e *examination) docker(ctx context.Context) {
	e.report.daemon(ctx, *e.cfg.Docker, func(ctx context.Context, network, addr string) (net.Conn, error) {
		stream, err := e.conn.Dial(ctx, network, addr)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", addr, err)
		}
		return stream, nil
	}, e.sshd(", and AllowStreamLocalForwarding yes in sshd_config", ", and use a server that forwards to unix sockets"))
}

// ExamineDaemon examines a Docker daemon that this machine reaches by itself, for builds in containers. user is this
// process's. ctx bounds it, and 60 s do.
func ExamineDaemon(ctx context.Context, at docker.Address, user string) Report {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	start := time.Now()
	r := Report{Instance: "this machine", Addr: at.String(), User: user}
	r.daemon(ctx, at, new(net.Dialer).DialContext, "")
	r.finish(time.Since(start))
	return r
}

// daemon asks a Docker daemon about itself, as a build would call it. more is what else may have to change.
func (r *Report) daemon(
	ctx context.Context, at docker.Address, dial func(ctx context.Context, network, addr string) (net.Conn, error),
	more string,
) {
	about, err := docker.About(ctx, func(ctx context.Context) (net.Conn, error) { return at.Dial(ctx, dial) })
	if err != nil {
		r.add(failure(checkDocker, err.Error(),
			fmt.Sprintf("start the daemon, let %s open its socket (usermod -aG docker %[1]s)%s", r.User, more)))
		return
	}
	r.add(okay(checkDocker, about))
}

// notStarted reports why no step runner could be started.
func (e *examination) notStarted(err error) {
	missing := (*connector.ServeError)(nil)
	if errors.As(err, &missing) && (missing.ExitCode == 126 || missing.ExitCode == 127) {
		e.report.skip("there is no step runner to start", checkRelay, checkStreamlocal)
		return
	}
	e.report.add(failure(checkRelay, "no step runner could be started: "+err.Error(), ""))
	e.report.skip("there is no step runner to reach", checkStreamlocal)
}

func (e *examination) judgeRelay(choice connector.Choice, took time.Duration) Finding {
	if e.relay {
		return okay(checkRelay, fmt.Sprintf("runs; the first step runner listened after %v", round(took)))
	}
	return warning(checkRelay, "does not run: "+choice.StartReason,
		"install this version of stepmux there: "+install(e.in),
		"all builds share one SSH session, and a step runner starts without a login shell")
}

func (e *examination) judgeStreamlocal(choice connector.Choice) Finding {
	if e.forward {
		return okay(checkStreamlocal, "allowed")
	}
	detail, gain := choice.BridgeReason, "each build takes one session instead of two"
	if e.relay {
		detail, gain = "not allowed; the relay carries the builds' output instead",
			"more throughput, above all over a long way"
	}
	return warning(checkStreamlocal, detail, e.sshd(
		"AllowStreamLocalForwarding yes in sshd_config (and DisableForwarding no)",
		"use a server that forwards to unix sockets, such as OpenSSH"), gain)
}

// sshd returns an advice for OpenSSH's server, or otherwise if the server is another one, which has no sshd_config.
func (e *examination) sshd(advice, otherwise string) string {
	if strings.HasPrefix(e.conn.Stat().ServerVersion, "SSH-2.0-OpenSSH") {
		return advice
	}
	return otherwise
}

// renew replaces the connection.
func (e *examination) renew(ctx context.Context) error {
	conn, err := e.provider.Dial(ctx, e.in.ID, nil)
	if err == nil {
		e.conn.Close()
		e.conn = conn
	}
	return err
}

// unshared is the only lease on a connection.
type unshared struct{ conn *mux.Conn }

func (u unshared) Conn() connector.Conn { return u.conn }
func (u unshared) Release()             {}

// round shortens a duration for people.
func round(d time.Duration) time.Duration {
	switch {
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond)
	default:
		return d.Round(10 * time.Microsecond)
	}
}
