package proc

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newInit returns an Init that is there.
func newInit(t *testing.T) *Init {
	t.Helper()
	in := new(Init)
	t.Cleanup(func() { in.Close() })
	in.Prepare()
	require.NotNil(t, in.init(t))
	return in
}

// init returns the init itself.
func (in *Init) init(t *testing.T) *link {
	t.Helper()
	in.mu.Lock()
	m := in.latest
	in.mu.Unlock()
	<-m.done
	require.NoError(t, m.err)
	return m.link
}

func TestInitRunsCommandsOneAfterTheOther(t *testing.T) {
	in := newInit(t)
	first := in.init(t)
	for range 3 {
		in.Prepare() // one is enough
		var out, errs bytes.Buffer
		c := shell("echo out; echo err >&2; exit 3")
		c.Stdout, c.Stderr = &out, &errs
		p, err := in.Start(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, 3, wait(t, p).Code)
		require.NoError(t, p.Close())
		require.Equal(t, "out\n", out.String())
		require.Equal(t, "err\n", errs.String())
		require.Same(t, first, in.init(t))
	}
	require.NoError(t, in.Close())
	require.True(t, ended(first.init.Pid))
}

func TestInitThatWasKilledIsReplaced(t *testing.T) {
	in := newInit(t)
	killed := in.init(t)
	require.NoError(t, killed.init.Kill())
	<-killed.gone
	p, err := in.Start(t.Context(), shell("exit 3"))
	require.NoError(t, err)
	require.NotSame(t, killed, in.init(t))
	require.Equal(t, 3, wait(t, p).Code)
	require.NoError(t, p.Close())
}

// Symptom: a script that killed its init at once was reported as one that had not started, so it could start again.
func TestCommandWhoseStartIsUnknownFailsInWaitNotInStart(t *testing.T) {
	in := newInit(t)
	l := in.init(t)
	require.NoError(t, l.init.Signal(unix.SIGSTOP))
	eventually(t, func() bool {
		is, err := ReadInfo(l.init.Pid)
		return err == nil && is.Stopped
	}, "the init is stopped")
	started := make(chan error, 1)
	var p *Process
	go func() {
		var err error
		p, err = in.Start(t.Context(), shell("exit 3"))
		started <- err
	}()
	raw, err := l.control.SyscallConn()
	require.NoError(t, err)
	eventually(t, func() bool { // the command waits in the channel
		unread := 0
		require.NoError(t, raw.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }))
		require.NoError(t, err)
		return unread > 0
	}, "the command is handed over")
	require.NoError(t, l.init.Kill())
	require.NoError(t, <-started)
	require.Zero(t, p.PID())
	_, err = p.Wait(t.Context())
	require.EqualError(t, err, `wait for "/bin/sh": the command's init process ended first; it is not known whether the `+
		`command had started`)
	require.True(t, MachineFailed(err))
	p.Stop(0)
	require.EqualError(t, p.Close(), `close "/bin/sh": the command's init process ended first: signal: killed`)

	_, err = l.start(t.Context(), shell("exit 3"))
	require.ErrorIs(t, err, errUnreachable)
	require.True(t, MachineFailed(err))
}

func TestClosedInitLeavesNothingAndStartsNothing(t *testing.T) {
	tag := newTag()
	in := newInit(t)
	running := in.init(t)
	c := shell(leaveThings)
	out := newLines(t)
	c.Env, c.Stdout = append(c.Env, tag), out
	p, err := in.Start(t.Context(), c)
	require.NoError(t, err)
	out.want(t, "ready")
	require.NoError(t, in.Close())
	require.NoError(t, in.Close())
	require.True(t, ended(running.init.Pid))
	require.Empty(t, tagged(t, tag))
	require.NoError(t, p.Close())
	in.Prepare()
	_, err = in.Start(t.Context(), shell("exit 3"))
	require.ErrorIs(t, err, errClosed)

	in = new(Init) // closed while it is being made
	in.Prepare()
	require.NoError(t, in.Close())
	require.NoError(t, new(Init).Close())
}

func TestInitOutlivesACommandThatCannotBeStarted(t *testing.T) {
	in := newInit(t)
	first := in.init(t)
	_, err := in.Start(t.Context(), Command{Dir: "/"})
	require.ErrorContains(t, err, "it has no program")
	_, err = in.Start(t.Context(), Command{Argv: []string{"/no/such"}, Dir: "/"})
	require.ErrorIs(t, err, ErrNotFound)
	_, err = in.Start(t.Context(), Command{Argv: []string{"sh"}, Dir: "/etc/passwd", Env: []string{testPath}})
	require.ErrorContains(t, err, "not a directory")
	require.Same(t, first, in.init(t))
}

// Symptom: a command that could not be handed over, for want of files, ended all others of the build after 10 s.
func TestInitOutlivesACommandThatItWasNotTold(t *testing.T) {
	in := newInit(t)
	first := in.init(t)
	var files unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: files.Max}))
	_, err := in.Start(t.Context(), shell("true"))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &files))
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorContains(t, err, "raise ulimit -n")
	p, err := in.Start(t.Context(), shell("exit 3"))
	require.NoError(t, err)
	require.Equal(t, 3, wait(t, p).Code)
	require.NoError(t, p.Close())
	require.Same(t, first, in.init(t))
}

func TestInitStartsManyAtOnce(t *testing.T) {
	in := new(Init)
	defer in.Close()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			in.Prepare()
			p, err := in.Start(t.Context(), shell("sleep 0.01 & exit $1", fmt.Sprint(i)))
			require.NoError(t, err)
			require.Equal(t, i, wait(t, p).Code)
			require.NoError(t, p.Close())
		})
	}
	wg.Wait()
}

// What a command leaves behind is not the end of another one that runs beside it.
func TestClosingACommandLeavesTheOthers(t *testing.T) {
	in := newInit(t)
	begin := func() (*Process, string) {
		tag, out := newTag(), newLines(t)
		c := shell(leaveThings)
		c.Env, c.Stdout = append(c.Env, tag), out
		p, err := in.Start(t.Context(), c)
		require.NoError(t, err)
		out.want(t, "ready")
		return p, tag
	}
	first, firstTag := begin()
	second, secondTag := begin()
	require.NoError(t, first.Close())
	require.Empty(t, tagged(t, firstTag))
	require.Contains(t, tagged(t, secondTag), second.PID())
	require.NoError(t, second.Close())
	require.Empty(t, tagged(t, secondTag))
}

// A process that nothing assigns to its command ends with the last command.
func TestTheLastCommandTakesEverythingAlong(t *testing.T) {
	in := newInit(t)
	other, err := in.Start(t.Context(), shell("exec sleep 1000"))
	require.NoError(t, err)
	out, tag := newLines(t), newTag()
	c := shell(`env -i "$1" setsid sh -c 'sh -c "echo hidden; exec sleep 1000" &'; exit 0`, tag)
	c.Stdout = out
	p, err := in.Start(t.Context(), c)
	require.NoError(t, err)
	out.want(t, "hidden")
	require.Zero(t, wait(t, p).Code)
	require.NoError(t, p.Close())
	eventually(t, func() bool { return len(tagged(t, tag)) > 0 }, "the hidden one, after its exec")
	require.NoError(t, other.Close())
	require.Empty(t, tagged(t, tag))
}

func TestGroupEndedReportsProcessesThatACommandHasLeft(t *testing.T) {
	out := newLines(t)
	c := shell(`(trap exit USR1; echo $(exec sh -c 'echo $PPID'); while :; do sleep 0.01; done) & exit 3`)
	c.Stdout = out
	p := start(t, c)
	background := atoi(out.next(t))
	require.Equal(t, 3, wait(t, p).Code)
	require.False(t, p.GroupEnded(t.Context()))
	require.NoError(t, unix.Kill(background, unix.SIGUSR1))
	eventually(t, func() bool { return p.GroupEnded(t.Context()) }, "the group")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = p.GroupEnded(ctx) // returns
	require.NoError(t, p.Close())
	require.True(t, p.GroupEnded(t.Context()))
}
