package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// start starts a process by way of s.
func start(t testing.TB, s starter, line string, stderr io.Writer) *mux.Process {
	t.Helper()
	p, err := s.Start(sshtest.Within(t), mux.Command{Line: line, Stderr: stderr})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func TestProcessKeepsStdoutAndStderrApart(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		var stderr bytes.Buffer
		p := start(t, dial(t, s), "echo out; echo err >&2", &stderr)
		out, err := io.ReadAll(p)
		require.NoError(t, err)
		require.NoError(t, p.Wait(sshtest.Within(t)))
		require.Equal(t, "out\n", string(out))
		require.Equal(t, "err\n", stderr.String())
	})
}

func TestProcessTellsItsExitStatus(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		require.NoError(t, start(t, conn, exitLine(0), nil).Wait(sshtest.Within(t)))
		for line, want := range map[string]mux.ExitError{
			exitLine(42):              {Status: 42},
			exitLine(255):             {Status: 255},
			"/no/such/command-at-all": {Status: 127},
			"kill -KILL $$":           {Signal: "KILL"},
		} {
			var got *mux.ExitError
			require.ErrorAs(t, start(t, conn, line, nil).Wait(sshtest.Within(t)), &got, line)
			require.Equal(t, want.Status, got.Status, line)
			require.Equal(t, want.Signal, got.Signal, line)
		}
	})
}

//stepmux:faults executor | The first byte that a bridge's program writes to its standard error ends the bridge
//stepmux:with mux.TestProcessKeepsStdoutAndStderrApart
func TestStderrFloodDoesNotStallStdout(t *testing.T) {
	// stdout and stderr share one window: unread stderr would stall stdout for good.
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		p := start(t, dial(t, s), "head -c 8388608 /dev/zero >&2; echo done", nil)
		out, err := io.ReadAll(p)
		require.NoError(t, err)
		require.Equal(t, "done\n", string(out))
		require.NoError(t, p.Wait(sshtest.Within(t)))
	})
}

func TestWaitAfterALostConnectionIsNoExit(t *testing.T) {
	// Symptom: a build whose connection was cut ended with exit code 0.
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		proxy := sshtest.Proxy(t, s.Addr)
		conn := dial(t, s.Via(t, proxy.Addr()))
		p := start(t, conn, "exec cat", nil)
		proxy.Cut()
		err := p.Wait(sshtest.Within(t))
		requireLost(t, err)
		exit := (*mux.ExitError)(nil)
		require.False(t, errors.As(err, &exit))
	})
}

func TestWaitEndsWithItsContextAndCanBeCalledAgain(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := start(t, conn, "exec cat", nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("because")
	cancel(because)
	require.ErrorIs(t, p.Wait(ctx), because)
	require.NoError(t, p.CloseWrite())
	require.NoError(t, p.Wait(sshtest.Within(t)))
	require.NoError(t, p.Wait(sshtest.Within(t)))
}

func TestSignalReachesTheProcess(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	p := start(t, dial(t, s), `trap "echo got; exit 7" USR1; echo ready; while :; do sleep 0.01; done`, nil)
	ready := make([]byte, len("ready\n"))
	_, err := io.ReadFull(p, ready)
	require.NoError(t, err)
	for _, unknown := range []string{"SIGUSR1", "usr1", "WINCH", ""} { // sshd and the relay ignore them without a word
		require.ErrorContains(t, p.Signal(unknown), "without SIG")
	}
	require.NoError(t, p.Signal("USR1"))
	out, err := io.ReadAll(p)
	require.NoError(t, err)
	require.Equal(t, "got\n", string(out))
	exit := (*mux.ExitError)(nil)
	require.ErrorAs(t, p.Wait(sshtest.Within(t)), &exit)
	require.Equal(t, 7, exit.Status)
}

func TestMoreBuildsThanSessionsWaitAndAllSucceed(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		var wg sync.WaitGroup
		errs := make(chan error, 60)
		for range cap(errs) {
			wg.Go(func() {
				p, err := conn.Start(sshtest.Within(t), mux.Command{Line: "echo hi"})
				if err != nil {
					errs <- err
					return
				}
				defer p.Close()
				out, err := io.ReadAll(p)
				if err == nil && string(out) != "hi\n" {
					err = errors.New("got " + string(out))
				}
				errs <- errors.Join(err, p.Wait(sshtest.Within(t)))
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.NoError(t, conn.Err(), "saturation is not death")
		eventually(t, func() bool { return conn.Stat().Sessions.Open == 0 })
		require.Equal(t, 1, s.TotalConns())
	})
}

func TestTryStartSaysSaturatedAndTheConnectionGoesOn(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		var held []*mux.Process
		for {
			p, err := conn.TryStart(sshtest.Within(t), mux.Command{Line: "exec cat"})
			if errors.Is(err, mux.ErrSaturated) {
				break
			}
			require.NoError(t, err)
			t.Cleanup(func() { p.Close() })
			held = append(held, p)
			require.LessOrEqual(t, len(held), 10, "more than the server allows")
		}
		stat := conn.Stat().Sessions
		require.Equal(t, len(held), stat.Limit, "learned from the refusal")
		require.True(t, stat.Learned)
		// A waiting Start gets the slot of one that ends.
		started := make(chan error, 1)
		go func() {
			p, err := conn.Start(sshtest.Within(t), mux.Command{Line: "exit 0"})
			if err == nil {
				err = p.Wait(sshtest.Within(t))
			}
			started <- err
		}()
		for _, p := range held[:min(3, len(held))] { // below the budget, which is two less than the limit
			require.NoError(t, p.CloseWrite())
			require.NoError(t, p.Wait(sshtest.Within(t)))
		}
		require.NoError(t, receive(t, started))
	})
}

//stepmux:reliability mechanisms | Builds that take several sessions never wait for each other | `mux/reserve.go`
func TestReserveIsAllOrNoneSoThatPairsNeverDeadlock(t *testing.T) {
	// Each build needs two sessions. If every build could take one, all would wait for the second.
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		var wg sync.WaitGroup
		errs := make(chan error, 20)
		for range cap(errs) {
			wg.Go(func() { errs <- pair(t, conn) })
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		eventually(t, func() bool { return conn.Stat().Sessions.Open == 0 })
	})
}

// pair runs two processes at once in one reservation.
func pair(t testing.TB, conn *mux.Conn) error {
	both, err := conn.Reserve(sshtest.Within(t), 2)
	if err != nil {
		return err
	}
	defer both.Release()
	first, err := both.Start(sshtest.Within(t), mux.Command{Line: "exec cat"})
	if err != nil {
		return err
	}
	defer first.Close()
	second, err := both.Start(sshtest.Within(t), mux.Command{Line: "exec cat"})
	if err != nil {
		return err
	}
	defer second.Close()
	return errors.Join(first.CloseWrite(), second.CloseWrite(),
		first.Wait(sshtest.Within(t)), second.Wait(sshtest.Within(t)))
}

func TestReserveOfMoreThanTheServerEverAllowsSaysSo(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{MaxSessions: 1})
	_, err := dial(t, s).Reserve(sshtest.Within(t), 2)
	require.ErrorIs(t, err, mux.ErrForbidden)
	require.ErrorContains(t, err, "allows 1 session on a connection, 2 are needed (MaxSessions in sshd_config)")
}

func TestReleaseGivesUnusedSessionsBack(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		for range 10 {
			r, err := conn.Reserve(sshtest.Within(t), 2)
			require.NoError(t, err)
			r.Release()
			r.Release()
		}
		eventually(t, func() bool { return conn.Stat().Sessions.Open == 0 })
	})
}

func TestCancelledOpenLeaksNoChannel(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		proxy := sshtest.Proxy(t, s.Addr)
		conn := dial(t, s.Via(t, proxy.Addr()))
		path := listen(t, echo)
		proxy.Stall()
		ctx, cancel := context.WithCancel(t.Context())
		var all []<-chan error
		for range 5 {
			all = append(all, inBackground(func() error {
				_, err := conn.Start(ctx, mux.Command{Line: "exec cat"})
				return err
			}), inBackground(func() error {
				_, err := conn.DialUnix(ctx, path)
				return err
			}))
		}
		cancel()
		for _, done := range all {
			require.ErrorIs(t, receive(t, done), context.Canceled)
		}
		proxy.Resume()
		eventually(t, func() bool {
			stat := conn.Stat()
			return stat.Sessions.Open == 0 && stat.Streams == 0
		})
		require.NoError(t, start(t, conn, "exit 0", nil).Wait(sshtest.Within(t)), "and all slots are free")
		require.NoError(t, conn.Shutdown(sshtest.Within(t)), "nothing is counted as open for ever")
	})
}

func TestShutdownWaitsForOpenChannelsAndRefusesNewOnes(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := start(t, conn, "exec cat", nil)
	down := inBackground(func() error { return conn.Shutdown(sshtest.Within(t)) })
	eventually(t, func() bool {
		_, err := conn.Start(sshtest.Within(t), mux.Command{Line: "exit 0"})
		return errors.Is(err, mux.ErrClosed)
	})
	_, err := p.Write([]byte("still here"))
	require.NoError(t, err)
	require.NoError(t, p.CloseWrite())
	out, err := io.ReadAll(p)
	require.NoError(t, err)
	require.Equal(t, "still here", string(out))
	require.NoError(t, receive(t, down))
	require.ErrorIs(t, conn.Err(), mux.ErrClosed)
}

func TestShutdownEndsWithItsContext(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	start(t, conn, "exec cat", nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, conn.Shutdown(ctx), context.DeadlineExceeded)
	receive(t, conn.Done())
}

func TestLongCommandLinesReachTheServer(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := start(t, conn, "echo "+strings.Repeat("x", 100<<10), nil)
	out, err := io.ReadAll(p)
	require.NoError(t, err)
	require.Len(t, out, 100<<10+1)
}

func TestStartRefusesAnInvalidCommand(t *testing.T) {
	conn := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	for _, cmd := range []mux.Command{
		{},
		{Argv: []string{"true"}, Line: "true"},
		{Argv: []string{"true"}, Env: []string{"no equals sign"}},
		{Argv: []string{"true"}, Env: []string{"=x"}},
		{Argv: []string{"a\x00b"}},
		{Line: "true", Dir: "a\x00b"},
	} {
		_, err := conn.Start(sshtest.Within(t), cmd)
		require.ErrorContains(t, err, "start: ")
	}
	require.Zero(t, conn.Stat().Sessions.Open)
}

//stepmux:reliability promises | A build that failed is never reported as a success
//stepmux:with mux.TestWaitAfterALostConnectionIsNoExit
//stepmux:with connector/script.TestScriptWhoseOutputIsCutOffIsLostThoughItsEndIsKnown
//stepmux:with instance.TestAJobThatKillsAnotherBuildsServerDoesNotMakeItASuccess
//stepmux:with bench/faults.TestFaultsOfEachKindLeaveBuildsTrueAndVMsClean
//stepmux:reliability mechanisms | No false success: an exit status that a lost connection cut off from its output is a
//stepmux:more loss | `mux/sshchannel.go`
func TestLossAfterTheExitStatusIsStillALoss(t *testing.T) {
	// Symptom: a server tells the exit status before the rest of the output. A connection cut between
	// the two gave a truncated log and a success.
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		proxy := sshtest.Proxy(t, s.Addr)
		conn := dial(t, s.Via(t, proxy.Addr()))
		// The background process keeps stdout open after the exit.
		p, exited, err := mux.StartWatched(sshtest.Within(t), conn,
			mux.Command{Line: "(exec tail --pid=$PPID -f /dev/null) & echo $!; exit 0"})
		require.NoError(t, err)
		t.Cleanup(func() { p.Close() })
		line := make([]byte, 1)
		for line[0] != '\n' {
			_, err := p.Read(line)
			require.NoError(t, err)
		}
		rest := inBackground(func() error {
			_, err := io.ReadAll(p)
			return err
		})
		eventually(t, exited)
		proxy.Cut()
		requireLost(t, receive(t, rest))
		requireLost(t, p.Wait(sshtest.Within(t)))
	})
}

func TestCloseOfAStreamDoesNotWaitForAFrozenPeer(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	proxy := sshtest.Proxy(t, s.Addr)
	cfg := config(s)
	cfg.KeepaliveInterval, cfg.KeepaliveTimeout = time.Hour, time.Hour // would be the end of the wait
	conn := dialWith(t, s.Via(t, proxy.Addr()), cfg)
	var all []*mux.Process
	for range 5 {
		all = append(all, start(t, conn, "exec cat >/dev/null", nil))
	}
	proxy.Stall()
	for _, p := range all { // until TCP takes no more
		go func() {
			for buf := make([]byte, 1<<20); ; {
				if _, err := p.Write(buf); err != nil {
					return
				}
			}
		}()
	}
	closed := inBackground(func() error {
		for _, p := range all {
			p.Close()
		}
		return nil
	})
	require.NoError(t, receive(t, closed))
	require.NoError(t, conn.Close())
}

func TestTryReserveTakesAllOrSaysSaturated(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		pairs := 0
		for {
			both, err := conn.TryReserve(sshtest.Within(t), 2)
			if errors.Is(err, mux.ErrSaturated) {
				break
			}
			require.NoError(t, err)
			defer both.Release()
			pairs++
			require.LessOrEqual(t, pairs, 5, "more than the server allows")
		}
		require.NotZero(t, pairs)
		eventually(t, func() bool { return conn.Stat().Sessions.Open == 2*pairs }) // the half of a pair was given back
		require.NoError(t, conn.Err(), "saturation is not death")
	})
}
