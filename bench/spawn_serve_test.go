package bench

import (
	"bufio"
	"crypto/rand"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
)

// benchmarkServeStart measures exec of `stepmux steps serve` to its ready marker, beside the start of a
// Go program that does nothing. Look at the ratio: serve-x/empty.
func benchmarkServeStart(b *testing.B) {
	dir, empty, stepmux := sshtest.SocketDir(b), empty(b), stepmux(b)
	r := inTurns(b, tails, []candidate{
		{name: "empty", run: func(r *results) error {
			begin := time.Now()
			err := exec.CommandContext(b.Context(), empty).Run()
			r.add("empty", micros(time.Since(begin)))
			return err
		}},
		{name: "serve", run: func(r *results) error {
			socket, err := wire.SocketPath(dir, wire.BuildID(rand.Text()))
			require.NoError(b, err)
			r.add("serve", micros(serveStart(b, stepmux, socket)))
			return nil
		}},
	})
	r.latencies("µs", "empty", "serve")
	r.ratios("empty", "serve")
}

// serveStart returns the time from exec to marker, and waits until serve has ended.
func serveStart(b *testing.B, stepmux, socket string) time.Duration {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), stepmux, "steps", "serve", "--socket", socket)
	leash, err := cmd.StdinPipe()
	require.NoError(b, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(b, err)
	begin := time.Now()
	require.NoError(b, cmd.Start())
	line, err := bufio.NewReader(stderr).ReadString('\n')
	took := time.Since(begin)
	require.NoError(b, err)
	require.Equal(b, wire.ReadyLine(socket), line)
	require.NoError(b, leash.Close())
	require.NoError(b, cmd.Wait())
	return took
}
