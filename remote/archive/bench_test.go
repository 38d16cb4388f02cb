package archive

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkExtract unpacks 6,000 small files and 80 MiB that do not compress, as a cache of packages has them. It takes
// turns with tar.
func BenchmarkExtract(b *testing.B) {
	for _, program := range []string{"tar", "zstd"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skip("part missing: " + program)
		}
	}
	dir := b.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	write := func(name string, size int, values byte) {
		text := make([]byte, size)
		for i := range text {
			text[i] = byte(random.Uint32()) % values
		}
		path := filepath.Join(dir, "from", name)
		require.NoError(b, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(b, os.WriteFile(path, text, 0o600))
	}
	for i := range 6000 {
		write(fmt.Sprintf("p%d/lib/a%d/f%d.js", i/20, i/20%7, i), random.IntN(14_000), 16)
	}
	for i := range 4 {
		write(fmt.Sprintf("big%d", i), 20<<20, 255)
	}
	file := filepath.Join(dir, "file")
	pack := exec.CommandContext(b.Context(), "tar", "-C", filepath.Join(dir, "from"), "--zstd", "-cf", file, ".")
	require.NoError(b, pack.Run())
	took := map[string][]time.Duration{}
	turn := func(name string, unpack func(to string) error) {
		to := filepath.Join(dir, name)
		require.NoError(b, os.MkdirAll(to, 0o755))
		begin := time.Now()
		require.NoError(b, unpack(to))
		took[name] = append(took[name], time.Since(begin))
		require.NoError(b, os.RemoveAll(to))
	}
	for b.Loop() {
		turn("extract", func(to string) error {
			from, err := os.Open(file)
			if err != nil {
				return err
			}
			defer from.Close()
			_, err = Extract(b.Context(), from, to, Bounds{})
			return err
		})
		turn("tar", func(to string) error {
			return exec.CommandContext(b.Context(), "tar", "-C", to, "--zstd", "-xf", file).Run()
		})
	}
	for name, all := range took {
		slices.Sort(all)
		took[name] = all[len(all)/2:]
	}
	b.ReportMetric(float64(took["extract"][0])/float64(took["tar"][0]), "x/tar")
	b.ReportMetric(took["extract"][0].Seconds(), "s")
	b.ReportMetric(0, "ns/op")
}
