package mux_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// onStarters runs test with each way to start a process, against each of the servers.
func onStarters(t *testing.T, test func(*testing.T, starter)) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn := dial(t, s)
		t.Run("session", func(t *testing.T) { test(t, conn) })
		t.Run("relay", func(t *testing.T) { test(t, relayOf(t, conn)) })
	})
}

func TestInputIsTheBeginningOfStdin(t *testing.T) {
	onStarters(t, func(t *testing.T, s starter) {
		for _, n := range []int{0, 1, 44, 32 << 10} {
			input := bytes.Repeat([]byte("i"), n)
			p, err := s.Start(sshtest.Within(t), mux.Command{Line: peerLine(echo), Input: input})
			require.NoError(t, err)
			defer p.Close()
			more := bytes.Repeat([]byte("more"), 1<<18) // beyond the window: what Input took of it counts
			wrote := inBackground(func() error {
				_, err := p.Write(more)
				_ = p.CloseWrite()
				return err
			})
			got, err := io.ReadAll(p)
			require.NoError(t, err)
			require.NoError(t, receive(t, wrote))
			require.True(t, bytes.Equal(append(input, more...), got), "%d bytes of input: got %d", n, len(got))
			require.NoError(t, p.Wait(sshtest.Within(t)))
		}
	})
}

func TestInputThatIsTooLongIsRefused(t *testing.T) {
	onStarters(t, func(t *testing.T, s starter) {
		_, err := s.Start(sshtest.Within(t), mux.Command{Line: "true", Input: make([]byte, 32<<10+1)})
		require.ErrorContains(t, err, "32769 bytes of Input, at most 32768 are allowed")
	})
}

func TestProcessThatDoesNotReadItsInputStartsAndEnds(t *testing.T) {
	onStarters(t, func(t *testing.T, s starter) {
		for range 20 {
			p, err := s.Start(sshtest.Within(t), mux.Command{Line: "exec <&-; exit 3", Input: make([]byte, 32<<10)})
			require.NoError(t, err)
			exit := (*mux.ExitError)(nil)
			require.ErrorAs(t, p.Wait(sshtest.Within(t)), &exit)
			require.Equal(t, 3, exit.Status)
			require.NoError(t, p.Close())
		}
	})
}

func TestStartWithInputEndsWithItsContext(t *testing.T) {
	onStarters(t, func(t *testing.T, s starter) {
		for i := range 20 {
			ctx, cancel := context.WithCancel(sshtest.Within(t))
			timer := time.AfterFunc(time.Duration(i)*100*time.Microsecond, cancel)
			p, err := s.Start(ctx, mux.Command{Line: peerLine(echo), Input: []byte("x")})
			if err != nil {
				require.ErrorIs(t, err, context.Canceled)
			} else { // it was in time, and its life is its own
				_, err = io.ReadFull(p, make([]byte, 1))
				require.NoError(t, err)
				require.NoError(t, p.Close())
			}
			timer.Stop()
			cancel()
		}
	})
}
