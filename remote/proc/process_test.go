package proc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

func TestExitSaysHowTheCommandEnded(t *testing.T) {
	tests := map[string]struct {
		script string
		want   Exit
		text   string
	}{
		"success":       {"exit 0", Exit{}, "exit status 0"},
		"failure":       {"exit 42", Exit{Code: 42}, "exit status 42"},
		"not found":     {"nosuch-program 2>/dev/null", Exit{Code: 127}, "exit status 127"},
		"no program":    {"/etc/passwd 2>/dev/null", Exit{Code: 126}, "exit status 126"},
		"the last code": {"exit 255", Exit{Code: 255}, "exit status 255"},
		"SIGKILL":       {"kill -9 $$", Exit{Code: 137, Signal: unix.SIGKILL}, "signal: killed"},
		"SIGTERM":       {"kill $$", Exit{Code: 143, Signal: unix.SIGTERM}, "signal: terminated"},
		"dumps no core": {"kill -ABRT $$", Exit{Code: 134, Signal: unix.SIGABRT}, "signal: aborted"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			exit, out := run(t, shell(test.script))
			require.Empty(t, out)
			require.Equal(t, test.want, Exit{Code: exit.Code, Signal: exit.Signal})
			require.Equal(t, test.text, exit.String())
			require.Positive(t, exit.MaxRSS)
		})
	}
}

func TestExitHasTheProcessorTimeOfTheCommandAndItsChildren(t *testing.T) {
	exit, _ := run(t, shell(`sh -c 'i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done'; exit 0`))
	require.Greater(t, exit.UserTime+exit.SystemTime, 5*time.Millisecond)
	require.Greater(t, exit.MaxRSS, int64(500<<10))
}

func TestOutputArrivesWholeAndSeparate(t *testing.T) {
	const size = 8 << 20
	var out, errs bytes.Buffer
	c := shell(`head -c "$1" /dev/zero | tr '\0' o & head -c "$1" /dev/zero | tr '\0' e >&2; wait`, fmt.Sprint(size))
	c.Stdout, c.Stderr = &out, &errs
	p := start(t, c)
	require.Zero(t, wait(t, p).Code)
	require.NoError(t, p.Close())
	require.Equal(t, sha256.Sum256(bytes.Repeat([]byte("o"), size)), sha256.Sum256(out.Bytes()))
	require.Equal(t, sha256.Sum256(bytes.Repeat([]byte("e"), size)), sha256.Sum256(errs.Bytes()))
}

func TestOutputForOneWriterHasTheOrderOfTheCommand(t *testing.T) {
	var all bytes.Buffer
	c := shell(`i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done`)
	c.Stdout, c.Stderr = &all, &all
	p := start(t, c)
	require.Zero(t, wait(t, p).Code)
	require.NoError(t, p.Close())
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "out %d\nerr %[1]d\n", i+1)
	}
	require.Equal(t, want.String(), all.String())
}

// brokenWriter takes so many bytes, and then fails.
type brokenWriter struct {
	room int
	err  error
}

func (w *brokenWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.room)
	w.room -= n
	if n < len(p) {
		return n, w.err
	}
	return n, nil
}

func TestWriterThatFailsIsReportedAndDoesNotHoldUpTheCommand(t *testing.T) {
	full := errors.New("disk full")
	tests := map[string]struct{ give, want error }{
		"an error":            {full, full},
		"a short write, mute": {nil, io.ErrShortWrite},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := shell("head -c 1000000 /dev/zero || exit 1; echo stays >&2; exit 7")
			var errs bytes.Buffer
			c.Stdout, c.Stderr = &brokenWriter{room: 100_000, err: test.give}, &errs
			p := start(t, c)
			exit, err := p.Wait(t.Context())
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, "stdout")
			require.Equal(t, 7, exit.Code)
			require.Equal(t, "stays\n", errs.String())
			require.NoError(t, p.Close())
		})
	}
}

// panicky panics at its first Write.
type panicky struct{}

func (panicky) Write([]byte) (int, error) { panic("broken") }

func TestWriterThatPanicsIsReportedAndEndsNothingElse(t *testing.T) {
	c := shell("head -c 1000000 /dev/zero; echo end >&2")
	out := newLines(t)
	c.Stdout, c.Stderr = panicky{}, out
	p := start(t, c)
	exit, err := p.Wait(t.Context())
	require.EqualError(t, err, "write stdout: internal error of the step runner: broken")
	require.Zero(t, exit.Code)
	out.want(t, "end")
}

func TestCommandGetsNoEnvironmentSignalsOrLimitsOfTheServer(t *testing.T) {
	t.Setenv("STEPMUX_TEST_SECRET", "hush")
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGUSR1)
	t.Cleanup(func() { signal.Reset(unix.SIGHUP, unix.SIGINT, unix.SIGUSR1) })
	c := shell(`env
		for set in SigIgn SigBlk; do # less 32 and 33, glibc's own, which its posix_spawn ignores: make's, say
			mask=$(sed -n "s/^$set:[[:space:]]*//p" /proc/self/status)
			echo $set: $(printf %016x $((0x$mask & ~0x180000000)))
		done
		read slack </proc/self/timerslack_ns; echo slack $slack
		echo core $(ulimit -c) $(ulimit -H -c)
		echo ids $$ $(cut -d' ' -f5,6 /proc/$$/stat)`)
	c.Env = append(c.Env, "OWN=first", "OWN=last")
	exit, out := run(t, c)
	require.Zero(t, exit.Code, out)
	var got, ids []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		switch fields[0] {
		case "PWD=/", "_=/usr/bin/env": // of the shell
		case "ids":
			ids = fields[1:]
		default:
			got = append(got, strings.Join(fields, " "))
		}
	}
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{
		testPath, "OWN=last", Marker()[0], "STEPMUX_COMMAND=1",
		"SigIgn: 0000000000000000", "SigBlk: 0000000000000000",
		"core 0 0", fmt.Sprint("slack ", slack),
	}, got)
	require.Len(t, ids, 3)
	require.Equal(t, []string{ids[0], ids[0]}, ids[1:], "the command leads its process group and session")
}

func TestCommandGetsNoDescriptorOfTheServer(t *testing.T) {
	const careless = 101 // open, and not close-on-exec
	require.NoError(t, unix.Dup2(2, careless))
	t.Cleanup(func() { unix.Close(careless) })
	c := shell("echo ready; exec sleep 1000")
	out := newLines(t)
	c.Stdout = out
	p := start(t, c)
	out.want(t, "ready")
	fds := map[string]string{}
	dir := fmt.Sprintf("/proc/%d/", p.PID())
	entries, err := os.ReadDir(dir + "fd")
	require.NoError(t, err)
	for _, entry := range entries {
		to, err := os.Readlink(dir + "fd/" + entry.Name())
		require.NoError(t, err)
		fds[entry.Name()], _, _ = strings.Cut(to, ":")
	}
	require.Equal(t, map[string]string{"0": "/dev/null", "1": "pipe", "2": "/dev/null"}, fds)
	info, err := os.ReadFile(dir + "fdinfo/1")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^flags:\s*01$`, string(info), "O_WRONLY, and not O_NONBLOCK")
}

func TestDescriptorsAreFoundOneByOneOnOldKernels(t *testing.T) {
	const careless = 101
	require.NoError(t, unix.Dup2(2, careless))
	t.Cleanup(func() { unix.Close(careless) })
	require.NoError(t, closeOnExecEach())
	flags, err := unix.FcntlInt(careless, unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Equal(t, unix.FD_CLOEXEC, flags)
	flags, err = unix.FcntlInt(2, unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Zero(t, flags, "stdio is the command's")
}

func TestInitShowsNoSecretInPs(t *testing.T) {
	c := shell("echo ready; exec sleep 1000", "hush")
	c.Env = append(c.Env, "SECRET=hush")
	out := newLines(t)
	c.Stdout = out
	p := start(t, c)
	out.want(t, "ready")
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.link.init.Pid))
	require.NoError(t, err)
	require.Equal(t, "stepmux\x00__init\x00"+self().String()+"\x00", string(args))
	if os.Geteuid() == 0 { // nobody else may look
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.link.init.Pid))
		require.NoError(t, err)
		require.Regexp(t, `^GOMAXPROCS=1\x00GODEBUG=[a-z]+=0,[a-z]+=0\x00`+slackVar+`=[0-9]+\x00$`, string(environ))
	}
}

func TestInitStartedByHandSaysSo(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	p, err := os.StartProcess("/proc/self/exe", initArgs, &os.ProcAttr{Env: []string{}, Files: []*os.File{nil, nil, w}})
	require.NoError(t, err)
	w.Close()
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	state, err := p.Wait()
	require.NoError(t, err)
	require.Equal(t, 2, state.ExitCode())
	require.Contains(t, string(text), "does nothing by hand")
}

func TestWaitDoesNotHangOnABackgroundProcessThatHoldsTheOutput(t *testing.T) {
	out := newLines(t)
	c := shell(`(trap 'echo later; exit' USR1; echo $(exec sh -c 'echo $PPID'); while :; do sleep 0.01; done) & exit 3`)
	c.Stdout = out
	p := start(t, c)
	background := atoi(out.next(t))
	require.Equal(t, 3, wait(t, p).Code)
	require.False(t, ended(background), "it lives until Close")
	require.NoError(t, unix.Kill(background, unix.SIGUSR1))
	out.want(t, "later")
	require.NoError(t, p.Close())
}

func TestWaitEndsWithItsContextAndTheCommandLivesOn(t *testing.T) {
	p := start(t, shell("exec sleep 1000"))
	because := errors.New("bored")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(because)
	_, err := p.Wait(ctx)
	require.ErrorIs(t, err, because)
	require.False(t, ended(p.PID()))
}

func TestAllWaitsGetTheSame(t *testing.T) {
	p := start(t, shell("exit 5"))
	group, ctx := errgroup.WithContext(t.Context())
	for range 10 {
		group.Go(func() error {
			exit, err := p.Wait(ctx)
			if err == nil && exit.Code != 5 {
				err = fmt.Errorf("got %v", exit)
			}
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.NoError(t, p.Close())
	require.Equal(t, 5, wait(t, p).Code, "Close takes nothing away")
}

func TestTwoHundredCommandsAtOnce(t *testing.T) {
	tag := newTag()
	var group errgroup.Group
	for i := range 200 {
		group.Go(func() error {
			var out bytes.Buffer
			c := shell(`sleep 1000 & echo $1; kill $!; exit $(($1 % 100))`, fmt.Sprint(i))
			c.Env = append(c.Env, tag)
			c.Stdout = &out
			p, err := Start(t.Context(), c)
			if err != nil {
				return err
			}
			exit, err := p.Wait(t.Context())
			if err == nil && (exit.Code != i%100 || out.String() != fmt.Sprintln(i)) {
				err = fmt.Errorf("command %d: %v, %q", i, exit, out.String())
			}
			return errors.Join(err, p.Close())
		})
	}
	require.NoError(t, group.Wait())
	require.Empty(t, tagged(t, tag))
}

func TestCloseWakesWait(t *testing.T) {
	p := start(t, shell("exec sleep 1000"))
	var waiters sync.WaitGroup
	for range 3 {
		waiters.Go(func() {
			if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != unix.SIGKILL {
				t.Errorf("got %v, %v", exit, err)
			}
		})
	}
	var closers sync.WaitGroup
	for range 3 {
		closers.Go(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if !ended(p.PID()) || !ended(p.link.init.Pid) {
				t.Error("Close has not waited for the end")
			}
		})
	}
	closers.Wait()
	waiters.Wait()
}

// late takes nothing before it has waited for a time.
type late struct {
	wait  time.Duration
	taken atomic.Bool
}

func (l *late) Write(p []byte) (int, error) {
	timer := time.NewTimer(l.wait)
	<-timer.C
	l.taken.Store(true)
	return len(p), nil
}

// Symptom: Wait gave up reading the output of a command that had left no process behind, and later output came before
// it.
func TestOutputWithoutOpenWritersIsReadToItsEndHoweverLongThatTakes(t *testing.T) {
	out := &late{wait: DrainTimeout + time.Second/2}
	c := shell("echo hi")
	c.Stdout = out
	require.Zero(t, wait(t, start(t, c)).Code)
	require.True(t, out.taken.Load())
}
