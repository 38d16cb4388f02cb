package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLimitsAreReadAsTheyAreWritten(t *testing.T) {
	for _, c := range []struct {
		memory, pids, cpus string
		want               Limits
	}{
		{"", "", "", Limits{}},
		{"512M", "64", "0.5", Limits{512 << 20, 64, 0.5}},
		{"2GiB", "", "2", Limits{2 << 30, 0, 2}},
		{"1T", "", "", Limits{Memory: 1 << 40}},
		{"33554432", "", "", Limits{Memory: 32 << 20}},
		{"65536KB", "", "", Limits{Memory: 64 << 20}},
	} {
		got, err := ParseLimits(c.memory, c.pids, c.cpus)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
		said := map[string]string{}
		args := got.Args()
		for i := 0; i < len(args); i += 2 {
			said[args[i]] = args[i+1]
		}
		back, err := ParseLimits(said["--"+MemoryFlag], said["--"+PIDsFlag], said["--"+CPUsFlag])
		require.NoError(t, err)
		require.Equal(t, got, back)
	}
	for _, c := range [][3]string{
		{"31M"}, {"512MB!"}, {"-1G"}, {"1.5G"}, {"M"}, {"99999999T"}, {"9223372036854775807K"}, {" 1G"},
		{"", "15"}, {"", "1e3"}, {"", "-5"}, {"", "4294967296"},
		{"", "", "0"}, {"", "", "0.001"}, {"", "", "NaN"}, {"", "", "Inf"}, {"", "", "-1"}, {"", "", "two"},
	} {
		_, err := ParseLimits(c[0], c[1], c[2])
		require.Error(t, err, "%q", c)
	}
}

func TestSizesAreShort(t *testing.T) {
	require.Equal(t, "512 MiB", FormatSize(512<<20))
	require.Equal(t, "1.5 GiB", FormatSize(3<<29))
	require.Equal(t, "17 bytes", FormatSize(17))
}
