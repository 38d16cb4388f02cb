package embeddedvm_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestExitStatusAndSignalAreReported(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		client := dial(t, s)
		for _, tt := range []struct {
			command string
			status  int
			signal  string
		}{
			{"exit 0", 0, ""},
			{"exit 42", 42, ""},
			{"exit 300", 44, ""},
			{"/no/such/command", 127, ""},
			{"kill -TERM $$", 128 + 15, "TERM"},
			{"kill -KILL $$", 128 + 9, "KILL"},
			{"kill -16 $$", 128, "SIG@openssh.com"},
		} {
			t.Run(tt.command, func(t *testing.T) {
				session, err := client.NewSession()
				require.NoError(t, err)
				defer session.Close()
				err = session.Run(tt.command)
				if tt.status == 0 {
					require.NoError(t, err)
					return
				}
				var exit *ssh.ExitError
				require.ErrorAs(t, err, &exit)
				require.Equal(t, tt.status, exit.ExitStatus())
				require.Equal(t, tt.signal, exit.Signal())
			})
		}
	})
}

func TestStdoutAndStderrAreSeparate(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		r := start(t, dial(t, s), "echo out; echo err >&2")
		out, err := io.ReadAll(r.stdout)
		require.NoError(t, err)
		require.NoError(t, r.Wait())
		require.Equal(t, "out\n", string(out))
		require.Equal(t, "err\n", r.stderr.String())
	})
}

func TestHalfClosedStdinLetsTheRestOfTheOutputThrough(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		r := start(t, dial(t, s), "cat; echo end")
		sent := make([]byte, 5<<20) // more than the channel's window and the pipes hold
		_, _ = rand.Read(sent)
		wrote := make(chan error, 1)
		go func() {
			_, err := r.stdin.Write(sent)
			wrote <- err
			_ = r.stdin.Close()
		}()
		got, err := io.ReadAll(r.stdout)
		require.NoError(t, err)
		require.NoError(t, <-wrote)
		require.NoError(t, r.Wait())
		rest, ok := bytes.CutPrefix(got, sent)
		require.True(t, ok, "got %d bytes", len(got))
		require.Equal(t, "end\n", string(rest))
	})
}

func TestProcessThatDoesNotReadTakesNoStdin(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		// Its stdin is closed, so the client's bytes are dropped, however many they are.
		r := start(t, dial(t, s), "exec <&-; echo closed; read line < "+fifo(t)+"; echo $line")
		require.Equal(t, "closed", r.line(t))
		_, err := r.stdin.Write(make([]byte, 5<<20))
		require.NoError(t, err)
	})
}

func TestBackgroundProcessHoldsTheOutputOpen(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		gate := fifo(t)
		r := start(t, dial(t, s), "(read line < "+gate+"; echo $line) & echo started")
		require.Equal(t, "started", r.line(t))
		write(t, gate, "later")
		require.Equal(t, "later", r.line(t))
		require.NoError(t, r.Wait())
	})
}

func TestClosedChannelEndsStdinAndNotTheProcess(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		done := filepath.Join(t.TempDir(), "done")
		r := start(t, dial(t, s), "echo ready; cat >/dev/null; echo x > "+done)
		require.Equal(t, "ready", r.line(t))
		require.NoError(t, r.Close())
		eventually(t, func() bool { return exists(done) }, "the process went on after the end of its stdin")
	})
}

func TestLostConnectionEndsStdinAndNotTheProcess(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		proxy := sshtest.Proxy(t, s.Addr)
		done := filepath.Join(t.TempDir(), "done")
		r := start(t, dial(t, s.Via(t, proxy.Addr())), "echo ready; cat >/dev/null; echo x > "+done)
		require.Equal(t, "ready", r.line(t))
		proxy.Cut()
		eventually(t, func() bool { return exists(done) }, "the process went on after the end of its stdin")
	})
}

func TestSessionsBeyondTheLimitAreRefusedAndTheConnectionLives(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		client := dial(t, s)
		var held []*running
		for range 10 { // the stock MaxSessions
			held = append(held, start(t, client, "cat"))
		}
		requireRefused(t, client)
		require.NoError(t, held[3].stdin.Close())
		require.NoError(t, held[3].Wait())
		eventually(t, func() bool {
			session, err := client.NewSession()
			return err == nil && session.Run("true") == nil
		}, "a slot becomes free")
	})
}

func TestConfiguredSessionLimitHolds(t *testing.T) {
	onBoth(t, embeddedvm.Config{MaxSessions: 2}, []string{"MaxSessions 2"}, func(t *testing.T, s *sshtest.Server) {
		client := dial(t, s)
		start(t, client, "cat")
		start(t, client, "cat")
		requireRefused(t, client)
	})
}

func TestSlotIsHeldUntilTheProcessHasExited(t *testing.T) {
	onBoth(t, embeddedvm.Config{MaxSessions: 1}, []string{"MaxSessions 1"}, func(t *testing.T, s *sshtest.Server) {
		client := dial(t, s)
		gate := fifo(t)
		r := start(t, client, "echo ready; read line < "+gate)
		require.Equal(t, "ready", r.line(t))
		require.NoError(t, r.Close())
		requireRefused(t, client)
		write(t, gate, "go")
		eventually(t, func() bool {
			session, err := client.NewSession()
			return err == nil && session.Run("true") == nil
		}, "the slot becomes free")
	})
}

func requireRefused(t *testing.T, client *ssh.Client) {
	t.Helper()
	_, err := client.NewSession()
	requireReason(t, err, ssh.ConnectionFailed)
}

// requireReason checks that opening a channel was refused in sshd's words.
func requireReason(t *testing.T, err error, reason ssh.RejectionReason) {
	t.Helper()
	var refusal *ssh.OpenChannelError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, reason, refusal.Reason)
	require.Equal(t, "open failed", refusal.Message)
}

func TestKeepaliveIsAnswered(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		ok, _, err := dial(t, s).SendRequest("keepalive@openssh.com", true, nil)
		require.NoError(t, err)
		require.False(t, ok)
	})
}

func TestUnknownChannelTypesAreRefused(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		_, _, err := dial(t, s).OpenChannel("no-such-type", nil)
		requireReason(t, err, ssh.ConnectionFailed)
	})
}

func TestSecondCommandAndVariablesAreRefusedInASession(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		client := dial(t, s)
		r := start(t, client, "cat")
		ok, err := r.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{"true"}))
		require.NoError(t, err)
		require.False(t, ok)
		require.Error(t, r.Setenv("NAME", "value"))
	})
}

func TestCommandsDoNotSeeTheTestsEnvironment(t *testing.T) {
	t.Setenv("STEPMUX_TEST_SECRET", "s3cret")
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		env := output(t, dial(t, s), "env")
		require.NotContains(t, env, "s3cret")
		for _, name := range []string{
			"PATH=", "HOME=", "USER=", "LOGNAME=", "SHELL=", "SSH_CLIENT=", "SSH_CONNECTION=127.0.0.1 ",
		} {
			require.Contains(t, env, name)
		}
	})
}

func TestCommandLeadsItsOwnSession(t *testing.T) {
	onBoth(t, embeddedvm.Config{}, nil, func(t *testing.T, s *sshtest.Server) {
		// The fields of /proc/PID/stat are pid, comm, state, ppid, pgrp, session, tty.
		out := output(t, dial(t, s), "set -- $(cat /proc/$$/stat); test $1 = $5 && test $1 = $6 && test $7 = 0 && echo leads")
		require.Equal(t, "leads\n", out)
	})
}
