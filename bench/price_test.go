package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// baseVar names a directory with the programs of an earlier commit, which `make bench-price` builds.
const baseVar = "STEPMUX_BENCH_BASE"

// priced is the effort for a ratio of a few percent; the first turn does not count.
var priced = effort{times: 1, least: 11}

// BenchmarkPrice measures what trivial builds cost, as users have them: on the VM that is embedded in the program, with
// isolation, and not as root. The candidate "now" is this commit, "base" the one of STEPMUX_BENCH_BASE.
func BenchmarkPrice(b *testing.B) {
	p := newPriceRig(b)
	b.Run("processor-time", p.processorTime)
	b.Run("throughput", p.throughput)
	b.Run("queue", p.queue)
	b.Run("job", p.job)
	b.Run("idle", p.idle)
}

// priceRig has the programs, and an ordinary user with a home directory.
type priceRig struct {
	home    string
	user    *syscall.Credential // nil: that of this process
	script  string              // the file of a trivial job
	commits []pricedCommit
	why     string // why there is no base
}

// pricedCommit has the programs of a commit.
type pricedCommit struct{ name, manager, end string }

// newPriceRig skips the benchmark on a machine that does not isolate the builds of an ordinary user.
func newPriceRig(b *testing.B) *priceRig {
	b.Helper()
	p := &priceRig{home: sshtest.SocketDir(b)}
	require.NoError(b, os.Chmod(p.home, 0o755))
	if os.Geteuid() == 0 {
		p.user = &syscall.Credential{Uid: remotetest.Nobody, Gid: remotetest.Nobody}
		require.NoError(b, os.Chown(p.home, remotetest.Nobody, remotetest.Nobody))
	}
	p.script = filepath.Join(p.home, "true.sh")
	require.NoError(b, os.WriteFile(p.script, []byte("true\n"), 0o644))
	p.add(b, "now", runnertest.Manager(b), stepmux(b))
	if dir := os.Getenv(baseVar); dir == "" {
		p.why = baseVar + " names no programs of an earlier commit (make bench-price)"
	} else {
		p.add(b, "base", filepath.Join(dir, "stepmux"), filepath.Join(dir, "stepmux-vm"))
	}
	_, err := p.run(b.Context(), p.commits[0], 1, 1)
	if off, ok := errors.AsType[*notIsolatedError](err); ok {
		b.Skipf("part missing: %v", off)
	}
	require.NoError(b, err)
	return p
}

// add copies the programs of a commit to where the user can read them.
func (p *priceRig) add(b *testing.B, name, manager, end string) {
	b.Helper()
	c := pricedCommit{name, filepath.Join(p.home, name), filepath.Join(p.home, name+"-vm")}
	require.NoError(b, upload(manager, c.manager))
	require.NoError(b, upload(end, c.end))
	p.commits = append(p.commits, c)
}

// each returns a candidate for each commit, and says if there is no base.
func (p *priceRig) each(b *testing.B, run func(r *results, c pricedCommit) error) []candidate {
	b.Helper()
	if p.why != "" {
		missing(b, "base", p.why)
	}
	var all []candidate
	for _, c := range p.commits {
		all = append(all, candidate{name: c.name, run: func(r *results) error { return run(r, c) }})
	}
	return all
}

// command returns a command that runs as the user.
func (p *priceRig) command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = p.home
	cmd.Env = []string{"HOME=" + p.home, "TMPDIR=" + p.home, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.user}
	return cmd
}

// price is what a run of builds took.
type price struct {
	all, manager time.Duration // of processors: of all processes, and of the manager's
	perSecond    float64       // builds, from the end of the first to that of the last
}

// notIsolatedError reports a build that ran without isolation.
type notIsolatedError struct{ reason string }

func (e *notIsolatedError) Error() string { return "isolation for an ordinary user: " + e.reason }

// run runs trivial builds by `stepmux run`. All must succeed, with isolation.
func (p *priceRig) run(ctx context.Context, c pricedCommit, builds, atOnce int) (price, error) {
	cmd := p.command(ctx, c.manager, "run", "--builds", strconv.Itoa(builds), "--capacity", strconv.Itoa(atOnce),
		"--output", "json", p.script)
	var said sshtest.Log
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return price{}, err
	}
	rate, err := readEnds(out, builds)
	_, _ = io.Copy(io.Discard, out) // until it ends
	var of price
	if err == nil {
		of.perSecond = rate
		of.manager, err = timeOfEnded(cmd.Process.Pid)
	}
	if waitErr := cmd.Wait(); err == nil && waitErr != nil {
		err = fmt.Errorf("%w: %s", waitErr, said.String())
	}
	// The kernel adds the time of each process to that of the one that waits for it, up to the manager.
	of.all = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return of, err
}

// readEnds reads the results of builds, and returns how many ended in a second after the first.
func readEnds(from io.Reader, builds int) (perSecond float64, err error) {
	var first, last time.Time
	results := json.NewDecoder(from)
	for range builds {
		var b struct {
			Status, Error, Isolation string
			Reason                   string `json:"isolation_reason"`
		}
		if err := results.Decode(&b); err != nil {
			return 0, fmt.Errorf("read results: %w", err)
		}
		switch {
		case b.Status != "success":
			return 0, fmt.Errorf("a build ended with %s: %s", b.Status, b.Error)
		case b.Isolation == "" || b.Isolation == string(vmconfig.Off):
			return 0, &notIsolatedError{cmp.Or(b.Reason, "it is off")}
		}
		last = time.Now()
		if first.IsZero() {
			first = last
		}
	}
	return float64(builds-1) / max(last.Sub(first), time.Millisecond).Seconds(), nil
}

// timeOfEnded waits until a child has ended, and returns its own processor time, without that of its children. The
// caller waits for it then.
func timeOfEnded(pid int) (time.Duration, error) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("wait for process %d: %w", pid, err)
		}
	}
	one, ok := readProcess(fmt.Sprintf("/proc/%d/stat", pid))
	if !ok {
		return 0, fmt.Errorf("read the processor time of process %d: no such process", pid)
	}
	return one.own, nil
}

// loop starts `bash -c true` so often, in a loop, and returns the processor time.
func (p *priceRig) loop(ctx context.Context, times int) (time.Duration, error) {
	cmd := p.command(ctx, "bash", "-c", fmt.Sprintf("for ((i = 0; i < %d; i++)); do bash -c true; done", times))
	err := cmd.Run()
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}

// processorTime measures the processor time of a build in milliseconds: of all processes and, as "manager", of the
// manager with the sshd of its embedded VM.
func (p *priceRig) processorTime(b *testing.B) {
	n := sizes([]int{200}, 8)[0]
	each := func(d time.Duration) float64 { return millis(d) / float64(n) }
	all := p.each(b, func(r *results, c pricedCommit) error {
		of, err := p.run(b.Context(), c, n, 8)
		r.add(c.name, each(of.all))
		r.add(managerOf(c), each(of.manager))
		return err
	})
	all = append(all, candidate{name: "bash", run: func(r *results) error {
		took, err := p.loop(b.Context(), n)
		r.add("bash", each(took))
		return err
	}})
	r := inTurns(b, priced, all)
	r.medians("ms/build", "now", "base", "bash", "manager", "base-manager")
	r.ratio("now", "base", "base")
	r.ratio("manager", "base-manager", "base")
	r.ratios("bash", "now", "base", "manager", "base-manager")
}

func managerOf(c pricedCommit) string {
	if c.name == "now" {
		return "manager"
	}
	return c.name + "-manager"
}

// throughput measures builds a second, 16 at once.
func (p *priceRig) throughput(b *testing.B) {
	n := sizes([]int{240}, 16)[0]
	r := inTurns(b, priced, p.each(b, func(r *results, c pricedCommit) error {
		of, err := p.run(b.Context(), c, n, 16)
		r.add(c.name, of.perSecond)
		return err
	}))
	r.medians("builds/s", "now", "base")
	r.ratio("now", "base", "base")
}

// job measures a job of a step runner that has run jobs before: the time to its first byte in milliseconds, and the
// processor time of all processes of the step runner for it. The candidate bash is the time to the first byte of a bash
// that this process starts with the same script: no step runner can be faster.
func (p *priceRig) job(b *testing.B) {
	n := sizes([]int{64}, 2)[0]
	serves := make(map[string]*serve)
	for _, c := range p.commits {
		serves[c.name] = p.serve(b, c)
	}
	all := p.each(b, func(r *results, c pricedCommit) error {
		return r.jobs(b.Context(), c.name, serves[c.name], n)
	})
	all = append(all, candidate{name: "bash", run: func(r *results) (err error) {
		for range n {
			err = errors.Join(err, r.firstByte(b.Context()))
		}
		return err
	}})
	r := inTurns(b, priced, all)
	r.medians("p50-ms", "now", "base", "bash")
	r.medians("ms", "now-time", "base-time")
	r.ratio("now", "base", "base")
	r.ratios("bash", "now", "base")
	r.ratio("now-time", "base-time", "base")
}

// firstByte adds the time to the first byte of a bash that this process starts.
func (r *results) firstByte(ctx context.Context) error {
	var out timedWrite
	cmd := exec.CommandContext(ctx, "bash", "-c", trivial)
	cmd.Stdout = &out
	begin := time.Now()
	err := cmd.Run()
	r.add("bash", millis(out.at.Sub(begin)))
	return err
}

// timedWrite notes the time of its first write.
type timedWrite struct{ at time.Time }

func (w *timedWrite) Write(text []byte) (int, error) {
	if w.at.IsZero() {
		w.at = time.Now()
	}
	return len(text), nil
}

// serve starts a step runner of a commit, in which a job has run.
func (p *priceRig) serve(b *testing.B, c pricedCommit) *serve {
	b.Helper()
	s := newServeOf(b, p.home, func(socket string) *exec.Cmd {
		// Its leash ends it, when the context of the benchmark has ended already.
		return p.command(context.WithoutCancel(b.Context()), c.end, "steps", "serve", "--socket", socket)
	})
	require.NoError(b, s.do(b.Context(), trivial, 3))
	return s
}

// jobs runs jobs one after the other, and adds the time from each request to the first byte, and the processor time of
// each.
func (r *results) jobs(ctx context.Context, name string, s *serve, n int) error {
	before, err := s.spent()
	for range n {
		if err != nil {
			return err
		}
		begin := time.Now()
		var id string
		if id, err = s.start(ctx, trivial); err == nil {
			_, err = s.read(ctx, id, 1)
		}
		r.add(name, millis(time.Since(begin)))
		if err == nil {
			err = s.readAll(ctx, id, 3)
		}
	}
	after, spentErr := s.spent()
	r.add(name+"-time", millis(after-before)/float64(n))
	return errors.Join(err, spentErr)
}

// spent returns the processor time of the step runner's processes so far.
func (s *serve) spent() (time.Duration, error) {
	all, err := readProcesses()
	if err != nil {
		return 0, err
	}
	one, ok := readProcess(fmt.Sprintf("/proc/%d/stat", s.pid))
	if !ok {
		return 0, fmt.Errorf("read the processor time of the step runner: process %d has ended", s.pid)
	}
	return cpu(all.family(one)), nil
}
