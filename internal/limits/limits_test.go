package limits

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLimitsAreReadAsTheyAreWritten(t *testing.T) {
	for _, c := range []struct {
		said []string // flags and texts
		want Build
	}{
		{nil, Build{}},
		{[]string{MemoryFlag, "512M", PIDsFlag, "64", CPUsFlag, "0.5"}, Build{512 << 20, 64, 0.5}},
		{[]string{MemoryFlag, "2GiB", CPUsFlag, "2"}, Build{2 << 30, 0, 2}},
		{[]string{MemoryFlag, "1T"}, Build{Memory: 1 << 40}},
		{[]string{MemoryFlag, "33554432"}, Build{Memory: 32 << 20}},
		{[]string{MemoryFlag, "65536KB"}, Build{Memory: 64 << 20}},
		{[]string{MemoryFlag, "64m"}, Build{Memory: 64 << 20}}, // as for docker run
		{[]string{MemoryFlag, "1.5gib"}, Build{Memory: 3 << 29}},
	} {
		var got, back Build
		for i := 0; i < len(c.said); i += 2 {
			require.NoError(t, got.Set(c.said[i], c.said[i+1]))
		}
		require.Equal(t, c.want, got)
		args := got.Args()
		for i := 0; i < len(args); i += 2 {
			require.NoError(t, back.Set(args[i][len("--"):], args[i+1]))
		}
		require.Equal(t, got, back)
	}
	for flag, texts := range map[string][]string{
		MemoryFlag: {
			"", "31M", "512MB!", "-1G", "1e9", "1.5.0G", ".", "inf", "0x40000000", "M", "99999999T",
			"9223372036854775807K", " 1G",
		},
		PIDsFlag: {"", "15", "1e3", "-5", "4294967296"},
		CPUsFlag: {"", "0", "0.001", "NaN", "Inf", "-1", "two"},
	} {
		for _, text := range texts {
			require.Error(t, new(Build).Set(flag, text), "%s %q", flag, text)
		}
	}
}

func TestSizesAreShort(t *testing.T) {
	require.Equal(t, "512 MiB", FormatSize(512<<20))
	require.Equal(t, "1.5 GiB", FormatSize(3<<29))
	require.Equal(t, "17 bytes", FormatSize(17))
}
