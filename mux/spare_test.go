package mux_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

func TestTakenSpareIsAProcessLikeAnyOther(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		spare, err := conn.StartSpare(sshtest.Within(t), mux.Command{Line: "exec cat"})
		require.NoError(t, err)
		p := spare.Take()
		require.NotNil(t, p)
		require.Nil(t, spare.Take(), "it is taken")
		spare.Close()
		_, err = io.WriteString(p, "hello")
		require.NoError(t, err)
		require.NoError(t, p.CloseWrite())
		got, err := io.ReadAll(p)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
		require.NoError(t, p.Wait(sshtest.Within(t)))
		require.NoError(t, conn.Shutdown(sshtest.Within(t)), "every channel is counted out as it was counted in")
	})
}

func TestShutdownWaitsForASpareOnlyOnceItIsTaken(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		idle, err := conn.StartSpare(sshtest.Within(t), mux.Command{Line: "exec cat"})
		require.NoError(t, err)
		require.NoError(t, conn.Shutdown(sshtest.Within(t)))
		require.Nil(t, idle.Take(), "it ended with the connection")
		idle.Close()

		conn = dial(t, s)
		spare, err := conn.StartSpare(sshtest.Within(t), mux.Command{Line: "exec cat"})
		require.NoError(t, err)
		p := spare.Take()
		require.NotNil(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, conn.Shutdown(ctx), context.Canceled)
		p.Close()
	})
}

func TestSpareIsGivenUpWhenACallerWaitsForASession(t *testing.T) {
	s := sshtest.OpenSSH(t, "MaxSessions 2")
	conn := dial(t, s)
	for range 10 {
		var spare *mux.Spare
		require.Eventually(t, func() (ok bool) { // the sessions of the last round are gone some time after their close
			var err error
			spare, err = conn.StartSpare(sshtest.Within(t), mux.Command{Line: "exec cat"})
			return err == nil
		}, sshtest.Bound, time.Millisecond)
		both, err := conn.Reserve(sshtest.Within(t), 2)
		require.NoError(t, err, "they wait for one, which the spare gives up")
		require.Nil(t, spare.Take())
		_, err = conn.StartSpare(sshtest.Within(t), mux.Command{Line: "exec cat"})
		require.ErrorIs(t, err, mux.ErrSaturated)
		both.Release()
	}
}

func TestSpareIsGivenUpWhenTheServerAllowsLessThanConfigured(t *testing.T) {
	s := sshtest.OpenSSH(t, "MaxSessions 2")
	cfg := config(s)
	cfg.SessionLimit = 10
	conn := dialWith(t, s, cfg)
	spare, err := conn.StartSpare(sshtest.Within(t), mux.Command{Line: "exec cat"})
	require.NoError(t, err)
	both, err := conn.Reserve(sshtest.Within(t), 2)
	require.NoError(t, err)
	require.Nil(t, spare.Take())
	both.Release()
}

func TestSpareThatHasEndedIsNotTaken(t *testing.T) {
	conn := dial(t, sshtest.OpenSSH(t))
	spare, err := conn.StartSpare(sshtest.Within(t), mux.Command{Line: "exit 3"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return conn.Stat().Sessions.Open == 0 }, sshtest.Bound, time.Millisecond)
	require.Nil(t, spare.Take())
	spare.Close()
}
