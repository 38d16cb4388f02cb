package faults

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/remote/isolate"
)

const (
	sshdPath = "/usr/sbin/sshd"
	// sshdPatience bounds the start of an sshd.
	sshdPatience = 30 * time.Second
	// portTries bounds the attempts to find a port for it.
	portTries = 20
	// tmpSize is the size of a temporary directory with a file system of its own.
	tmpSize = 256 << 20
)

// machine is a VM: an sshd with directories and, in a private round, a network of its own.
type machine struct {
	id      string
	dir     string // its own; what is not for builds is in it
	tmp     string // the VM's directory for temporary files
	home    string
	before  []string       // files that are there without builds
	netns   string         // name of its network; empty if it shares the round's
	addr    netip.AddrPort // of sshd
	proxy   *faultconn.Proxy
	hostKey ssh.Signer

	starting sync.Mutex // held by who starts or kills sshd

	mu     sync.Mutex // guards the following
	sshd   *exec.Cmd
	exited chan struct{} // closed when sshd has
	// plugged is when the network was plugged in again; zero if it never was unplugged, or is.
	plugged          time.Time
	handshake, login time.Duration // of the last connection; login has both parts
}

// dialPhase notes how long the server's part of a dial took.
func (m *machine) dialPhase(phase string, took time.Duration, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch phase {
	case "handshake":
		m.handshake = took
	case "login":
		m.login = m.handshake + took
	}
}

// listener returns the process ID of the sshd that listens.
func (m *machine) listener() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sshd.Process.Pid
}

// restart kills the sshd that listens and, if sessions is true, those of connections, and starts another.
func (m *machine) restart(sessions bool) error {
	m.starting.Lock()
	defer m.starting.Unlock()
	var doomed []process
	if sessions {
		doomed = m.sessions()
	}
	m.killListener()
	signalAll(doomed, syscall.SIGKILL)
	return m.startSSHD()
}

// account is the user and key of every login.
type account struct {
	user string
	key  ssh.Signer
	file string // the key, for programs
}

// startMachine starts a VM.
func startMachine(ctx context.Context, dir string, i int, private bool, spec *kindSpec, who *account) (
	*machine, error,
) {
	m := &machine{id: "vm" + strconv.Itoa(i), dir: filepath.Join(dir, "v"+strconv.Itoa(i))}
	m.tmp, m.home = filepath.Join(m.dir, "t"), filepath.Join(m.dir, "home")
	for _, d := range []string{m.dir, m.tmp, m.home} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	err := isolate.Prepare(m.home, "") // builds with isolation would
	if err == nil {
		err = os.Mkdir(filepath.Join(m.home, ".cache/stepmux-steps"), 0o700)
	}
	if err != nil {
		return nil, err
	}
	m.before = m.files()
	if m.hostKey, err = newKey(filepath.Join(m.dir, "host")); err != nil {
		return nil, err
	}
	keys := ssh.MarshalAuthorizedKey(who.key.PublicKey())
	if err := os.WriteFile(filepath.Join(m.dir, "keys"), keys, 0o600); err != nil {
		return nil, err
	}
	host := netip.MustParseAddr("127.0.0.1")
	if private {
		if host, err = m.plug(ctx, i); err != nil {
			return nil, err
		}
		if spec.tmpfs {
			if err := unix.Mount("tmpfs", m.tmp, "tmpfs", 0, "mode=0700,size="+strconv.Itoa(tmpSize)); err != nil {
				return nil, fmt.Errorf("mount %s: %w", m.tmp, err)
			}
		}
	}
	for range portTries {
		port := uint16(2222)
		if !private {
			if port, err = freePort(); err != nil {
				return nil, err
			}
		}
		m.addr = netip.AddrPortFrom(host, port)
		if err = m.startSSHD(); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if spec.proxy {
		if m.proxy, err = faultconn.Listen(m.addr.String(), faultconn.Config{}); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// plug gives the VM a network of its own and returns its address in it.
func (m *machine) plug(ctx context.Context, i int) (netip.Addr, error) {
	m.netns = m.id
	near, far := "n"+strconv.Itoa(i), "f"+strconv.Itoa(i)
	net := "10.99." + strconv.Itoa(i) + "."
	for _, line := range []string{
		"netns add " + m.netns,
		"link add " + near + " address " + nearMAC +
			" type veth peer name " + far + " address " + farMAC + " netns " + m.netns,
		"addr add " + net + "1/24 dev " + near,
		"link set " + near + " up",
		"-n " + m.netns + " addr add " + net + "2/24 dev " + far,
		"-n " + m.netns + " link set " + far + " up",
		"-n " + m.netns + " link set lo up",
		// They stand for routers, which know their neighbours: the kernel looks for one once a second.
		"neigh replace " + net + "2 lladdr " + farMAC + " dev " + near + " nud permanent",
		"-n " + m.netns + " neigh replace " + net + "1 lladdr " + nearMAC + " dev " + far + " nud permanent",
	} {
		if err := command(ctx, "ip", strings.Fields(line)...); err != nil {
			return netip.Addr{}, err
		}
	}
	return netip.ParseAddr(net + "2")
}

// The addresses of the two ends of a VM's network.
const nearMAC, farMAC = "02:00:00:00:00:01", "02:00:00:00:00:02"

// nothingToDelete is the error of tc if no rule delays packets.
const nothingToDelete = "Cannot delete qdisc with handle of zero"

// link lets packets through in both directions, or drops them without a word.
func (m *machine) link(ctx context.Context, up bool) error {
	change := []string{"replace", "root", "pfifo", "limit", "0"}
	if up {
		change = []string{"del", "root"}
	}
	near := slices.Concat([]string{"qdisc", change[0], "dev", "n" + m.id[2:]}, change[1:])
	far := slices.Concat([]string{"-n", m.netns, "qdisc", change[0], "dev", "f" + m.id[2:]}, change[1:])
	err := errors.Join(command(ctx, "tc", near...), command(ctx, "tc", far...))
	if up && err != nil && strings.Count(err.Error(), "exit status") == strings.Count(err.Error(), nothingToDelete) {
		return nil // another fault of the round has let them through already
	}
	return err
}

// dialed is where the manager connects to.
func (m *machine) dialed() netip.AddrPort {
	if m.proxy != nil {
		return netip.MustParseAddrPort(m.proxy.Addr())
	}
	return m.addr
}

// startSSHD starts sshd and waits until it listens.
func (m *machine) startSSHD() error {
	config := []string{
		"ListenAddress " + m.addr.Addr().String(),
		"Port " + strconv.Itoa(int(m.addr.Port())),
		"HostKey " + filepath.Join(m.dir, "host"),
		"AuthorizedKeysFile " + filepath.Join(m.dir, "keys"),
		"PidFile none",
		"StrictModes no",
		"UsePAM no",
		"PasswordAuthentication no",
		"KbdInteractiveAuthentication no",
		"MaxStartups 100",
		"LogLevel VERBOSE",
		// By this a VM learns that its manager is gone that cannot say so.
		"ClientAliveInterval 3",
		"ClientAliveCountMax 2",
		"SetEnv SHLVL=1 HOME=" + m.home + " TMPDIR=" + m.tmp,
	}
	file := filepath.Join(m.dir, "sshd_config")
	if err := os.WriteFile(file, []byte(strings.Join(config, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(m.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	argv := []string{sshdPath, "-D", "-e", "-f", file}
	if m.netns != "" {
		argv = append([]string{"nsenter", "--net=/run/netns/" + m.netns}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start sshd: %w", err)
	}
	exited := make(chan struct{})
	go func() { // killListener waits for it
		defer close(exited)
		_ = cmd.Wait() // its log says more
	}()
	m.mu.Lock()
	m.sshd, m.exited = cmd, exited
	m.mu.Unlock()
	listens := func() bool { return m.logHas("Server listening on ") }
	if !await(sshdPatience, func() bool { return listens() || pause.Done(exited) }) || !listens() {
		m.killListener()
		text, _ := os.ReadFile(m.logFile())
		return fmt.Errorf("start sshd: it does not listen: %s", text)
	}
	return nil
}

func (m *machine) logFile() string { return filepath.Join(m.dir, "sshd.log") }

func (m *machine) logHas(text string) bool {
	log, err := os.ReadFile(m.logFile())
	return err == nil && bytes.Contains(log, []byte(text))
}

// killListener kills the sshd that listens, and no sshd of a connection.
func (m *machine) killListener() {
	m.mu.Lock()
	sshd, exited := m.sshd, m.exited
	m.mu.Unlock()
	_ = sshd.Process.Kill() // an error means that it has exited
	<-exited
}

// owned returns the VM's processes, sshd's included, of all there are.
func (m *machine) owned(all []process) []process {
	if m.netns != "" {
		return slices.DeleteFunc(slices.Clone(all), func(p process) bool { return !m.inNet(p.pid) })
	}
	ours := below(all, m.listener())
	for _, p := range all { // those whose sshd has gone
		if strings.Contains(strings.Join(p.args, " "), m.tmp) {
			ours = append(append(ours, p), below(all, p.pid)...)
		}
	}
	slices.SortFunc(ours, func(a, b process) int { return a.pid - b.pid })
	return slices.CompactFunc(ours, func(a, b process) bool { return a.pid == b.pid })
}

// inNet reports whether a process is in the VM's network.
func (m *machine) inNet(pid int) bool {
	var theirs, ours unix.Stat_t
	return unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &theirs) == nil &&
		unix.Stat("/run/netns/"+m.netns, &ours) == nil && theirs.Ino == ours.Ino
}

// sessions returns sshd's processes for connections.
func (m *machine) sessions() []process {
	var found []process
	for _, p := range m.owned(processes()) {
		if p.pid != m.listener() && (strings.HasPrefix(p.args[0], "sshd") || strings.Contains(p.args[0], "sshd-session")) {
			found = append(found, p)
		}
	}
	return found
}

// buildOf returns the build that a process of the VM works for, or "" if that is not certain: serves and inits have the
// build's directory open, and a serve that sweeps has other builds' directories open for a moment. The directory of a
// script without a step runner does not tell its build. Another user may not see the open files of a serve: then the
// commands of its jobs name the directory.
func (m *machine) buildOf(p process) string {
	base := filepath.Join(m.tmp, "gitlab-runner-steps") + "/"
	for _, arg := range p.args {
		if rest, ok := strings.CutPrefix(arg, base); ok {
			return strings.Split(rest, "/")[0]
		}
	}
	fds := fmt.Sprintf("/proc/%d/fd", p.pid)
	entries, err := os.ReadDir(fds)
	found := ""
	if err != nil && p.is("serve") {
		for _, q := range below(processes(), p.pid) {
			if _, rest, ok := strings.Cut(strings.Join(q.args, " "), base); ok {
				found, _, _ = strings.Cut(rest, "/")
			}
		}
	}
	for _, e := range entries {
		to, _ := os.Readlink(filepath.Join(fds, e.Name()))
		if rest, ok := strings.CutPrefix(to, base); ok {
			id := strings.Split(rest, "/")[0]
			if found != "" && found != id || strings.HasPrefix(id, "script-") {
				return ""
			}
			found = id
		}
	}
	return found
}

// left returns the files in the VM's directories that no build should have left.
func (m *machine) left() []string {
	return slices.DeleteFunc(m.files(), func(path string) bool { return slices.Contains(m.before, path) })
}

// files returns the files in the VM's directories.
func (m *machine) files() (found []string) {
	for _, dir := range []string{m.tmp, m.home} {
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && path != dir && path != filepath.Join(m.tmp, "gitlab-runner-steps") {
				found = append(found, path)
			}
			return nil
		})
	}
	return found
}

// newKey makes a key, which is written to a file too.
func newKey(file string) (ssh.Signer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	return ssh.NewSignerFromSigner(key)
}

func freePort() (uint16, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	addr, err := netip.ParseAddrPort(l.Addr().String())
	return addr.Port(), err
}

// command runs a program to its end.
func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// signalAll sends a signal to processes; those that have ended do not mind.
func signalAll(all []process, sig syscall.Signal) {
	for _, p := range all {
		_ = syscall.Kill(p.pid, sig)
	}
}

// await polls until done, at most for so long, and reports whether it came to be.
func await(bound time.Duration, done func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(bound); ; <-tick.C {
		if done() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}
