package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// maxOutput bounds how much of a command's output is read, in bytes.
	maxOutput = 64 << 10
	// shellRuns is how often the start of the login shell is measured.
	shellRuns = 5
	// slowShell is the longest start of a login shell that does not get a warning.
	slowShell = 100 * time.Millisecond
	// maxSkew is the largest difference of the clocks that does not get a warning.
	maxSkew = 5 * time.Second
	// Below lowSpace, in KiB, free space for temporary files is a warning; below noSpace it is a failure.
	lowSpace, noSpace = 1 << 20, 16 << 10
	// mostSessions bounds the sessions that are opened to measure the server's limit.
	mostSessions = 20
)

// shellTimeout bounds the wait for the output of a command that shows whether commands are run. Tests change it.
var shellTimeout = 10 * time.Second

// output is the output of a command, and how it ended.
type output struct {
	stdout, stderr string
	took           time.Duration
	err            error // of mux.Process.Wait
}

// run runs a command in a session.
func (e *examination) run(ctx context.Context, argv ...string) (output, error) {
	out, err := e.start(ctx, (*mux.Process).CloseWrite, argv)
	if exit := (*mux.ExitError)(nil); err == nil && out.err != nil && !errors.As(out.err, &exit) {
		return output{}, out.err
	}
	return out, err
}

// start runs a command in a session. input is what happens to its stdin. If ctx ends first, the output is what the VM
// printed so far, and its err is ctx's cause. A server that allows one session in the life of a connection refuses the
// second, or has ended the connection: then each command gets a connection of its own.
func (e *examination) start(ctx context.Context, input func(*mux.Process) error, argv []string) (output, error) {
	for try := 0; ; try++ {
		out, err := e.startOnce(ctx, input, argv)
		ended := errors.Is(err, mux.ErrForbidden) || mux.IsLost(err) && e.sshd("", "other") != ""
		if !ended || !e.ran || try == 2 {
			return out, err
		}
		e.single = true
		if err := e.renew(ctx); err != nil {
			return output{}, err
		}
	}
}

// startOnce is start over the connection that there is.
func (e *examination) startOnce(ctx context.Context, input func(*mux.Process) error, argv []string) (output, error) {
	var stderr bounded
	start := time.Now()
	p, err := e.conn.Start(ctx, mux.Command{Argv: argv, Stderr: &stderr})
	if err != nil {
		return output{}, err
	}
	e.ran = true
	defer p.Close()
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	_ = input(p) // fails only if the command has ended
	var stdout bounded
	_, _ = io.Copy(&stdout, p) // Wait reports how the command ended
	err = p.Wait(ctx)
	took := time.Since(start)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if mux.IsLost(err) {
		return output{}, err
	}
	return output{string(stdout.text), strings.TrimSpace(string(stderr.text)), took, err}, nil
}

// bounded keeps the first bytes that are written to it.
type bounded struct{ text []byte }

func (b *bounded) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), maxOutput-len(b.text))]...)
	return len(p), nil
}

// shell measures the start of the login shell, through which sshd runs every command.
func (e *examination) shell(ctx context.Context) bool {
	var all []time.Duration
	for range shellRuns {
		out, err := e.echo(ctx)
		if err != nil {
			e.report.add(failure(checkShell, err.Error(),
				"let the account run commands: a login shell"+e.sshd(", no ForceCommand, MaxSessions at least 1", "")))
			return false
		}
		before, _, ran := strings.Cut(out.stdout, shellSays)
		if !ran {
			e.report.add(e.judgeNotRun(out))
			return false
		}
		if before != "" {
			e.report.add(warning(checkShell, fmt.Sprintf("prints %q before a command's own output", first(before)),
				"let the shell's start-up files be silent when no terminal is there: first in .bashrc, [ -t 1 ] || return",
				"a relay can run, and a build be reached by a session"))
			return true
		}
		all = append(all, out.took)
	}
	slices.Sort(all)
	median := max(all[len(all)/2]-e.rtt, 0)
	f := okay(checkShell, fmt.Sprintf("starts a command in %v (median of %d)", round(median), shellRuns))
	if median > slowShell {
		f = warning(checkShell, f.Detail,
			"let the shell's start-up files do less when no terminal is there: first in .bashrc, [ -t 1 ] || return",
			"each build without a relay starts that much sooner, and the relay itself")
	}
	e.report.add(f)
	return true
}

// shellSays is the output of shellCommand, whose own words do not have it: a program that sshd runs in place of the
// command may quote it.
const shellSays = "stepmux-begun"

var shellCommand = []string{"printf", "%s-%s", "stepmux", "begun"}

// echo runs shellCommand with an open but silent stdin, as a relay and a step runner have it at first: the end of stdin
// would end a shell that runs in place of the command, as if it were the command.
func (e *examination) echo(ctx context.Context) (output, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, shellTimeout, fmt.Errorf("no answer within %v", shellTimeout))
	defer cancel()
	return e.start(ctx, func(*mux.Process) error { return nil }, shellCommand)
}

// judgeNotRun judges a login that did not run shellCommand.
func (e *examination) judgeNotRun(out output) Finding {
	exit := (*mux.ExitError)(nil)
	ended := out.err == nil || errors.As(out.err, &exit)
	detail, change := "the login did not run the command printf: ",
		"let the server run the commands that it is given: "+e.sshd("no ForceCommand in sshd_config, ", "")+
			"no command= in authorized_keys, a login shell that is a shell (usermod -s /bin/bash USER), "+
			"and no exit or exec of another program in its start-up files"
	if out.err == nil {
		out.err = errors.New("exit status 0")
	}
	detail += out.err.Error()
	if !ended {
		change = "let the start-up files of the login's shell neither read standard input nor start another shell when no " +
			"terminal is there: first in .bashrc, [ -t 0 ] || return" +
			e.sshd("; and name no program that waits by ForceCommand in sshd_config", "")
	}
	said := termtext.Short(out.stdout, maxReason)
	if said != "" && out.stderr != "" {
		said += " | "
	}
	if said += termtext.Short(out.stderr, maxReason); said != "" {
		detail += "; it said: " + said
	}
	return failure(checkShell, detail, program.Advice(said, change))
}

// first returns the beginning of a text.
func first(s string) string { return termtext.Cut(s, 60) }

// runner is the step runner's command on the VM.
func runner(in instance.Instance) []string {
	if len(in.Runner) == 0 {
		return connector.DefaultRunner
	}
	return in.Runner
}

// install is the advice how to get the VM's end onto an instance.
func install(in instance.Instance) string {
	name := runner(in)[0]
	if !strings.Contains(name, "/") {
		name = "/usr/local/bin/" + name
	}
	return "let stepmux run --bootstrap upload it, or install stepmux-vm as " + name + " and stepmux-fetch beside it"
}

// binary looks for the step runner.
func (e *examination) binary(ctx context.Context) {
	if len(e.cfg.Bootstrap) > 0 {
		p, err := Bootstrap(ctx, e.conn, e.in, e.cfg.Bootstrap)
		if err != nil {
			e.report.add(failure(checkBinary, err.Error(), ""))
			return
		}
		e.in.Runner = p.Command // from now on that one is examined
	}
	name := strings.Join(runner(e.in), " ")
	// Below a sh: if the program is missing, csh and tcsh end with exit status 1, not 127.
	out, err := e.run(ctx, slices.Concat([]string{"sh", "-c", `exec "$@"`, "sh"}, runner(e.in), []string{"--version"})...)
	exit := (*mux.ExitError)(nil)
	switch {
	case err != nil:
		e.report.add(failure(checkBinary, err.Error(), ""))
	case errors.As(out.err, &exit) && (exit.Status == 126 || exit.Status == 127):
		e.report.add(failure(checkBinary, fmt.Sprintf("%s cannot be executed: %s", name, first(out.stderr)),
			install(e.in)+", or name its path with --runner-command; it must be on the PATH of a login that is not interactive"))
	case out.err != nil:
		e.report.add(warning(checkBinary,
			fmt.Sprintf("%s does not tell its version: %v: %s", name, out.err, first(out.stderr)), "", ""))
	default:
		f := e.judgeVersion(name, out.stdout)
		if f.Status == OK && strings.Contains(out.stdout, "\nName: stepmux\n") {
			f = e.fetching(ctx, f)
		}
		e.report.add(f)
	}
}

// Bootstrap returns the step runner that a build on an instance would use, and uploads it if need be. conn is a
// connection to the instance.
func Bootstrap(
	ctx context.Context, conn *mux.Conn, in instance.Instance, programs []*program.Binary,
) (*program.Program, error) {
	if err := in.Check(); err != nil {
		return nil, err
	}
	p, _, err := program.Find(ctx, program.Config{
		Conn: conn, Runner: runner(in), Bootstrap: programs, TempDir: in.TempDir,
		Shared: in.OtherUser(), Relay: program.NoRelay, Timeout: answerTimeout, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = p.Complete(ctx, conn)
	}
	return p, err
}

// answerTimeout bounds the wait for a step runner's answer to --version.
const answerTimeout = 30 * time.Second

// exitNoNetwork is the exit code of a stepmux that cannot start the program for the network.
const exitNoNetwork = 3

// fetching returns ok, a finding about our step runner, or a finding that it cannot start the stepmux-fetch it needs.
func (e *examination) fetching(ctx context.Context, ok Finding) Finding {
	out, err := e.run(ctx, append(slices.Clone(runner(e.in)), "steps", "fetch", "--help")...)
	exit := (*mux.ExitError)(nil)
	if err != nil || !errors.As(out.err, &exit) || exit.Status != exitNoNetwork {
		return ok
	}
	return warning(checkBinary, ok.Detail+", without its program for the network: "+termtext.Cut(out.stderr, 300),
		install(e.in), "jobs can fetch steps, and bring artifacts and caches")
}

// instead reports that the configured program is missing and builds use another, which was found.
func (e *examination) instead(p program.Program) {
	for i, f := range e.report.Findings {
		if f.Check == checkBinary && f.Status == Fail {
			e.report.Findings[i] = warning(checkBinary,
				fmt.Sprintf("%s is missing; builds are run by %v", runner(e.in)[0], p), install(e.in),
				"a relay can run, which starts the builds' step runners without a login shell each")
		}
	}
}

func (e *examination) judgeVersion(name, text string) Finding {
	found := ""
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "Version:"); ok {
			found = strings.TrimSpace(v)
			break
		}
	}
	detail := fmt.Sprintf("%s, version %s", name, found)
	switch {
	case found == "":
		return warning(checkBinary, name+" tells no version; is it a step runner?", "", "")
	case e.cfg.Version != "" && found != e.cfg.Version:
		return warning(checkBinary, detail+"; this program is version "+e.cfg.Version, install(e.in),
			"both ends are known to work together")
	}
	return okay(checkBinary, detail)
}

// factsScript prints facts about time, programs and temporary files, one per line. $1 is the directory.
const factsScript = `echo "time $(date +%s.%N)"
for p in git bash; do command -v $p >/dev/null && echo "$p"; done
grep -q ' keyring *_ses: ' /proc/keys 2>/dev/null &&
  awk -v "user=$(id -u):" '$1 == user { print "keys", $4 }' /proc/key-users
[ -d "$1" ] || { echo missing; exit 0; }
df -Pk "$1" 2>/dev/null | awk 'NR > 1 { print "space", $4 }' | tail -n 1
f=$(mktemp "$1/stepmux-doctor.XXXXXX") || { echo readonly; exit 0; }
trap 'rm -f "$f"' EXIT
printf '#!/bin/sh\nexit 0\n' >"$f" || { echo full; exit 0; }
chmod 700 "$f" && "$f" || echo noexec`

// facts checks the VM's directory for temporary files, and its clock.
func (e *examination) facts(ctx context.Context) {
	dir := e.in.TempDir
	before := time.Now()
	out, err := e.run(ctx, "sh", "-c", factsScript, "sh", dir)
	if err == nil && out.err != nil {
		err = fmt.Errorf("look at %s: %w: %s", dir, out.err, first(out.stderr))
	}
	if err != nil {
		e.report.add(failure(checkTemp, err.Error(), ""))
		e.report.skip("the VM did not tell", checkClock, checkTools)
		return
	}
	facts := map[string]string{}
	for line := range strings.Lines(out.stdout) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		facts[key] = value
	}
	e.report.add(judgeTemp(dir, facts, out.stderr))
	// The clock was read about half-way through the command.
	e.report.add(judgeClock(facts["time"], before.Add(out.took/2), out.took/2))
	e.report.add(judgeTools(facts))
	if f, is := judgeKeys(facts["keys"], max(e.in.Capacity, 1)); is && e.in.Isolation != vmconfig.Off {
		e.report.add(f)
	}
}

// judgeKeys warns if the login's user may have too few keys for so many builds at once: each isolated build of a
// login with a session keyring, as PAM makes it, has a session keyring of its own. keys is USED/LIMIT as
// /proc/key-users has it (keyrings(7)), and empty for other logins.
func judgeKeys(keys string, builds int) (f Finding, is bool) {
	used, limit, _ := strings.Cut(keys, "/")
	has, err := strconv.Atoi(used)
	most, limitErr := strconv.Atoi(limit)
	if err != nil || limitErr != nil || most-has >= builds {
		return f, false
	}
	detail := fmt.Sprintf("the user has %d of at most %d keys of the kernel, and each isolated build takes one", has, most)
	remedy := fmt.Sprintf("sysctl kernel.keys.maxkeys=%d", 2*(has+builds))
	return warning(checkKeys, detail, remedy, "all builds can start at once"), true
}

// judgeTools judges the programs that builds may need beside the step runner.
func judgeTools(facts map[string]string) Finding {
	var missing, gains []string
	for _, tool := range []struct{ name, gain string }{
		{"git", "steps can come from git repositories, and jobs of GitLab be cloned"},
		{"bash", "jobs of GitLab can run, and scripts of steps are run by bash, not by sh"},
	} {
		if _, ok := facts[tool.name]; !ok {
			missing, gains = append(missing, tool.name), append(gains, tool.gain)
		}
	}
	if len(missing) == 0 {
		return okay(checkTools, "git and bash are installed")
	}
	names := strings.Join(missing, " and ")
	return warning(checkTools, names+" not found on the PATH of the login", "install "+names+" on the VM",
		strings.Join(gains, "; "))
}

func judgeTemp(dir string, facts map[string]string, stderr string) Finding {
	const elsewhere = "name another directory with temp_dir: in the inventory"
	has := func(fact string) bool { _, ok := facts[fact]; return ok }
	detail := dir
	free, err := strconv.ParseInt(facts["space"], 10, 64)
	if err == nil {
		detail = fmt.Sprintf("%s, %s free", dir, units.BytesSize(float64(free)*units.KiB))
	}
	switch {
	case has("missing"):
		return failure(checkTemp, dir+" does not exist",
			"mkdir -m 1777 "+dir+", or name another with temp_dir: in the inventory")
	case has("readonly"):
		return failure(checkTemp, fmt.Sprintf("%s cannot be written to: %s", dir, first(stderr)),
			"let the account write there, or "+elsewhere)
	case has("full"), err == nil && free < noSpace:
		return failure(checkTemp, detail+": it is full", "make room there")
	case has("noexec"):
		return warning(checkTemp, detail+"; files there cannot be executed (mounted noexec)",
			"mount it without noexec, or "+elsewhere, "steps can execute the files that they put there")
	case err == nil && free < lowSpace:
		return warning(checkTemp, detail, "make room there", "logs and the files of builds fit")
	}
	return okay(checkTemp, detail)
}

// judgeClock compares the VM's clock, in seconds since 1970, with here, which is accurate to within give.
func judgeClock(there string, here time.Time, give time.Duration) Finding {
	whole, fraction, _ := strings.Cut(there, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return Finding{Check: checkClock, Status: Skip, Detail: "the VM does not tell its time"}
	}
	nanos, err := strconv.ParseInt(fraction, 10, 64)
	if err != nil || len(fraction) != 9 { // a date program without %N
		nanos = 0
		give += time.Second
	}
	skew := time.Unix(seconds, nanos).Sub(here)
	if skew.Abs() > maxSkew+give {
		return warning(checkClock, fmt.Sprintf("%v off", time.Duration(math.Round(skew.Seconds()))*time.Second),
			"let a time service run there: timedatectl set-ntp true",
			"certificates are valid when they should be, times in logs fit together, make rebuilds the right files")
	}
	return okay(checkClock, fmt.Sprintf("within %v of this machine's", round(max(skew.Abs(), give))))
}

// sessions counts the sessions that the server allows at once, on a new connection.
func (e *examination) sessions(ctx context.Context) {
	conn, err := e.provider.Dial(ctx, e.in.ID, nil)
	if err != nil {
		e.report.add(warning(checkSessions, "a second connection could not be made: "+err.Error(), "", ""))
		return
	}
	defer conn.Close()
	n, refused, err := conn.CountSessions(ctx, mostSessions)
	if err != nil {
		e.report.add(warning(checkSessions, err.Error(), "", ""))
		return
	}
	e.report.add(e.judgeSessions(n, refused))
}

// moreSessions is the advice for a server that allows one session in the life of a connection.
const moreSessions = "use a server that allows more sessions on a connection, such as OpenSSH"

func (e *examination) judgeSessions(n int, refused bool) Finding {
	detail := fmt.Sprintf("%d at once on a connection", n) + e.sshd(" (MaxSessions)", "")
	if !refused {
		detail = fmt.Sprintf("%d or more at once on a connection", n)
	}
	need := 2
	if e.forward {
		need = 1
	}
	capacity := max(e.in.Capacity, 1)
	switch {
	case e.single && n <= 1 && !e.relay:
		return failure(checkSessions, "1 in the life of a connection, too few for a build without a relay", moreSessions)
	case e.single && n <= 1:
		return warning(checkSessions, "1 in the life of a connection; the relay takes it for all builds", moreSessions,
			"stepmux can be uploaded (--bootstrap), a relay that has ended be replaced, and commands be run beside it")
	case e.relay:
		detail += "; the relay takes one for all builds"
	case e.works && refused && n < need*capacity:
		return warning(checkSessions,
			fmt.Sprintf("%s; without a relay a build takes %d, too few for %s", detail, need,
				plural.Count(capacity, "build")),
			"install a stepmux that has a relay"+e.sshd(fmt.Sprintf(", or MaxSessions %d in sshd_config", need*capacity+2),
				", or use a server that allows more sessions"),
			plural.Count(capacity, "build")+" at once")
	}
	return okay(checkSessions, detail)
}
