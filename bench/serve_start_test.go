package bench

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/wire"
)

// BenchmarkServeStart measures exec of `stepmux steps serve` to its ready marker, beside the start of a
// Go program that does nothing, in turns. The ratio of the medians is what to look at: x/empty.
func BenchmarkServeStart(b *testing.B) {
	dir, err := os.MkdirTemp("", "sm") //nolint:usetesting // that of b.TempDir is too long for a socket
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, os.RemoveAll(dir)) })
	source := filepath.Join(dir, "empty.go")
	require.NoError(b, os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600))
	empty := build(b, dir, "empty", source)
	stepmux := build(b, dir, "stepmux", "github.com/stepmux/stepmux/cmd/stepmux")

	var starts, serves []time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		require.NoError(b, exec.CommandContext(b.Context(), empty).Run())
		starts = append(starts, time.Since(begin))

		socket, err := wire.SocketPath(dir, wire.BuildID(fmt.Sprint(i)))
		require.NoError(b, err)
		serves = append(serves, serveStart(b, stepmux, socket))
	}
	s, e := median(serves), median(starts)
	b.ReportMetric(0, "ns/op") // the two together mean nothing
	b.ReportMetric(float64(s.Microseconds()), "serve-p50-µs")
	b.ReportMetric(float64(e.Microseconds()), "empty-p50-µs")
	b.ReportMetric(float64(s)/float64(e), "x/empty")
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

// build builds target as dir/name, as a release is built, and returns its path.
func build(b *testing.B, dir, name, target string) string {
	b.Helper()
	path := filepath.Join(dir, name)
	cmd := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", path, target)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(b, err, "build %s: %s", target, out)
	return path
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
