package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/mux"
)

const (
	// maxOutput bounds how much of a command's output is read, in bytes.
	maxOutput = 64 << 10
	// shellRuns is how often the login shell's start is measured.
	shellRuns = 5
	// slowShell is how long it may take without a remark.
	slowShell = 100 * time.Millisecond
	// maxSkew is how far the clocks may be apart.
	maxSkew = 5 * time.Second
	// lowSpace should and noSpace must be free for temporary files, in KiB.
	lowSpace, noSpace = 1 << 20, 16 << 10
	// mostSessions bounds the sessions that are opened to see how many the server allows.
	mostSessions = 20
)

// output is the output of a command, and how it ended.
type output struct {
	stdout, stderr string
	took           time.Duration
	err            error // of mux.Process.Wait
}

// run runs a command in a session.
func (e *examination) run(ctx context.Context, argv ...string) (output, error) {
	var stderr bounded
	start := time.Now()
	p, err := e.conn.Start(ctx, mux.Command{Argv: argv, Stderr: &stderr})
	if err != nil {
		return output{}, err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	_ = p.CloseWrite() // an error means that it has ended
	var stdout bounded
	_, _ = io.Copy(&stdout, p) // how it ended, Wait says
	err = p.Wait(ctx)
	took := time.Since(start)
	exit := (*mux.ExitError)(nil)
	if err != nil && !errors.As(err, &exit) {
		return output{}, err
	}
	return output{stdout.String(), strings.TrimSpace(stderr.String()), took, err}, nil
}

// bounded keeps the first bytes written to it.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), max(maxOutput-b.Len(), 0))])
	return len(p), nil
}

// ReadFrom hides Buffer's, which has no bound.
func (b *bounded) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}

// shell measures the start of the login shell, by which sshd runs all commands.
func (e *examination) shell(ctx context.Context) bool {
	var all []time.Duration
	for range shellRuns {
		out, err := e.run(ctx, "true")
		if err == nil && out.err != nil {
			err = fmt.Errorf("the command true failed: %w: %s", out.err, out.stderr)
		}
		if err != nil {
			e.report.add(Finding{
				Check: checkShell, Status: Fail, Detail: err.Error(),
				Change: "let the account run commands: a login shell, no ForceCommand, MaxSessions at least 1",
			})
			return false
		}
		if out.stdout != "" {
			e.report.add(Finding{
				Check: checkShell, Status: Warn, Detail: fmt.Sprintf("prints %q before a command's own output", first(out.stdout)),
				Change: "let the shell's start-up files be silent when no terminal is there: first in .bashrc, [ -t 1 ] || return",
				Gain:   "a relay can run, and a build be reached by a session",
			})
			return true
		}
		all = append(all, out.took)
	}
	slices.Sort(all)
	median := max(all[len(all)/2]-e.rtt, 0)
	f := Finding{Check: checkShell, Status: OK,
		Detail: fmt.Sprintf("starts a command in %v (median of %d)", round(median), shellRuns)}
	if median > slowShell {
		f.Status = Warn
		f.Change = "let the shell's start-up files do less when no terminal is there: first in .bashrc, [ -t 1 ] || return"
		f.Gain = "each build without a relay starts that much sooner, and the relay itself"
	}
	e.report.add(f)
	return true
}

// first returns the beginning of a text.
func first(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "?") + "..."
	}
	return s
}

// runner is the step runner's command on the VM.
func runner(in instance.Instance) []string {
	if len(in.Runner) == 0 {
		return connector.DefaultRunner
	}
	return in.Runner
}

// install returns the command that installs this program on an instance.
func install(in instance.Instance) string {
	name := runner(in)[0]
	if !strings.Contains(name, "/") {
		name = "/usr/local/bin/" + name
	}
	host, port, err := net.SplitHostPort(in.Addr)
	if err != nil {
		host, port = in.Addr, "22"
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("let run --bootstrap upload it, or, as a user with write access there, scp -P %s stepmux %s@%s:%s",
		port, in.SSH.User, host, name)
}

// binary looks for the step runner.
func (e *examination) binary(ctx context.Context) {
	argv := append(slices.Clone(runner(e.in)), "--version")
	name := strings.Join(runner(e.in), " ")
	out, err := e.run(ctx, argv...)
	f := Finding{Check: checkBinary, Status: OK}
	exit := (*mux.ExitError)(nil)
	switch {
	case err != nil:
		f.Status, f.Detail = Fail, err.Error()
	case errors.As(out.err, &exit) && (exit.Status == 126 || exit.Status == 127):
		f.Status = Fail
		f.Detail = fmt.Sprintf("%s cannot be executed: %s", name, first(out.stderr))
		f.Change = fmt.Sprintf("%s, or name its path with --runner-command; it must be on the PATH of a login that is "+
			"not interactive", install(e.in))
	case out.err != nil:
		f.Status = Warn
		f.Detail = fmt.Sprintf("%s does not tell its version: %v: %s", name, out.err, first(out.stderr))
	default:
		f = e.judgeVersion(f, name, out.stdout)
	}
	e.report.add(f)
}

// instead notes that builds do without the program that is missing: another was found.
func (e *examination) instead(p program.Program) {
	for i := range e.report.Findings {
		f := &e.report.Findings[i]
		if f.Check != checkBinary || f.Status != Fail {
			continue
		}
		*f = Finding{
			Check: checkBinary, Status: Warn,
			Detail: fmt.Sprintf("%s is missing; builds are run by %v", runner(e.in)[0], p),
			Change: install(e.in),
			Gain:   "a relay can run, which starts the builds' step runners without a login shell each",
		}
	}
}

func (e *examination) judgeVersion(f Finding, name, text string) Finding {
	found := ""
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "Version:"); ok {
			found = strings.TrimSpace(v)
			break
		}
	}
	f.Detail = fmt.Sprintf("%s, version %s", name, found)
	switch {
	case found == "":
		f.Status, f.Detail = Warn, fmt.Sprintf("%s tells no version; is it a step runner?", name)
	case e.cfg.Version != "" && found != e.cfg.Version:
		f.Status = Warn
		f.Detail += "; this program is version " + e.cfg.Version
		f.Change = install(e.in)
		f.Gain = "both ends are known to work together"
	}
	return f
}

// factsScript prints facts about time and temporary files, one a line. $1 is the directory.
const factsScript = `echo "time $(date +%s.%N)"
[ -d "$1" ] || { echo missing; exit 0; }
df -Pk "$1" 2>/dev/null | awk 'NR > 1 { print "space", $4 }' | tail -n 1
f=$(mktemp "$1/stepmux-doctor.XXXXXX") || { echo readonly; exit 0; }
trap 'rm -f "$f"' EXIT
printf '#!/bin/sh\nexit 0\n' >"$f" || { echo full; exit 0; }
chmod 700 "$f" && "$f" || echo noexec`

// facts looks at the VM's directory for temporary files, and its clock.
func (e *examination) facts(ctx context.Context) {
	dir := e.in.TempDir
	if dir == "" {
		dir = "/tmp"
	}
	before := time.Now()
	out, err := e.run(ctx, "sh", "-c", factsScript, "sh", dir)
	if err == nil && out.err != nil {
		err = fmt.Errorf("look at %s: %w: %s", dir, out.err, first(out.stderr))
	}
	if err != nil {
		e.report.add(Finding{Check: checkTemp, Status: Fail, Detail: err.Error()})
		e.report.skip("the VM did not tell", checkClock)
		return
	}
	facts := map[string]string{}
	for line := range strings.Lines(out.stdout) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		facts[key] = value
	}
	e.report.add(judgeTemp(dir, facts, out.stderr))
	// The clock was read about half way through.
	e.report.add(judgeClock(facts["time"], before.Add(out.took/2), out.took/2))
}

func judgeTemp(dir string, facts map[string]string, stderr string) Finding {
	f := Finding{Check: checkTemp, Status: OK, Detail: dir}
	has := func(fact string) bool { _, ok := facts[fact]; return ok }
	free, err := strconv.ParseInt(facts["space"], 10, 64)
	if err == nil {
		f.Detail = fmt.Sprintf("%s, %s free", dir, mib(free))
	}
	switch {
	case has("missing"):
		f.Status, f.Detail = Fail, dir+" does not exist"
		f.Change = "mkdir -m 1777 " + dir + ", or name another with temp_dir: in the inventory"
	case has("readonly"):
		f.Status, f.Detail = Fail, fmt.Sprintf("%s cannot be written to: %s", dir, first(stderr))
		f.Change = "let the account write there, or name another directory with temp_dir: in the inventory"
	case has("full"), err == nil && free < noSpace:
		f.Status = Fail
		f.Detail += ": it is full"
		f.Change = "make room there"
	case has("noexec"):
		f.Status = Warn
		f.Detail += "; files there cannot be executed (mounted noexec)"
		f.Change = "mount it without noexec, or name another directory with temp_dir: in the inventory"
		f.Gain = "steps can execute the files that they put there"
	case err == nil && free < lowSpace:
		f.Status = Warn
		f.Change = "make room there"
		f.Gain = "logs and the files of builds fit"
	}
	return f
}

// mib returns a number of KiB for people.
func mib(kib int64) string {
	if kib >= 10<<20 {
		return fmt.Sprintf("%d GiB", kib>>20)
	}
	return fmt.Sprintf("%d MiB", kib>>10)
}

// judgeClock compares the VM's clock, seconds since 1970, with here, which is right within give.
func judgeClock(there string, here time.Time, give time.Duration) Finding {
	whole, fraction, _ := strings.Cut(there, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return Finding{Check: checkClock, Status: Skip, Detail: "the VM does not tell its time"}
	}
	nanos, err := strconv.ParseInt(fraction, 10, 64)
	if err != nil || len(fraction) != 9 { // a date that knows no %N
		nanos = 0
		give += time.Second
	}
	skew := time.Unix(seconds, nanos).Sub(here)
	f := Finding{Check: checkClock, Status: OK,
		Detail: fmt.Sprintf("within %v of this machine's", round(max(skew.Abs(), give)))}
	if skew.Abs() > maxSkew+give {
		f.Status = Warn
		f.Detail = fmt.Sprintf("%v off", time.Duration(math.Round(skew.Seconds()))*time.Second)
		f.Change = "let a time service run there: timedatectl set-ntp true"
		f.Gain = "certificates are valid when they should be, times in logs fit together, make rebuilds the right files"
	}
	return f
}

// sessions counts the sessions that the server allows at once, over a fresh connection.
func (e *examination) sessions(ctx context.Context) {
	conn, err := e.provider.Dial(ctx, e.in.ID, nil)
	if err != nil {
		e.report.add(Finding{Check: checkSessions, Status: Warn,
			Detail: "a second connection could not be made: " + err.Error()})
		return
	}
	defer conn.Close()
	n, refused, err := conn.CountSessions(ctx, mostSessions)
	if err != nil {
		e.report.add(Finding{Check: checkSessions, Status: Warn, Detail: err.Error()})
		return
	}
	e.report.add(e.judgeSessions(n, refused))
}

func (e *examination) judgeSessions(n int, refused bool) Finding {
	f := Finding{Check: checkSessions, Status: OK, Detail: fmt.Sprintf("%d at once on a connection (MaxSessions)", n)}
	if !refused {
		f.Detail = fmt.Sprintf("%d or more at once on a connection", n)
	}
	need := 2
	if e.forward {
		need = 1
	}
	capacity := max(e.in.Capacity, 1)
	switch {
	case e.relay:
		f.Detail += "; the relay takes one for all builds"
	case e.works && refused && n < need*capacity:
		f.Status = Warn
		f.Detail += fmt.Sprintf("; without a relay a build takes %d, so of %d builds some wait", need, capacity)
		f.Change = fmt.Sprintf("install a stepmux that has a relay, or MaxSessions %d in sshd_config", need*capacity+2)
		f.Gain = fmt.Sprintf("%d builds run at once", capacity)
	}
	return f
}
