package healthcheck_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/healthcheck"
)

var at = time.Unix(1_800_000_000, 0)

func TestTheCommandMeasuresInEachShell(t *testing.T) {
	t.Parallel()
	for _, shell := range [][]string{{"dash"}, {"bash"}, {"busybox", "sh"}, {"ksh"}, {"zsh"}} {
		path, err := exec.LookPath(shell[0])
		if err != nil {
			t.Skip("part missing: " + shell[0])
		}
		argv := append([]string{path}, shell[1:]...)
		began := time.Now()
		out, err := exec.CommandContext(t.Context(), argv[0],
			append(argv[1:], healthcheck.Command(t.TempDir())[1:]...)...).Output()
		require.NoError(t, err, shell)
		r, err := healthcheck.Parse(string(out), began, time.Now())
		require.NoError(t, err, "%s: %s", shell, out)
		require.Positive(t, *r.FreeSpace, shell)
		require.Positive(t, *r.FreeMemory, shell)
		require.NotNil(t, r.Load, shell)
		require.Zero(t, *r.ClockSkew, shell)
		require.NoError(t, healthcheck.Default.Check(r), shell)
	}
}

func TestWhatAVMCannotMeasureIsNotJudged(t *testing.T) {
	t.Parallel()
	all := healthcheck.Limits{FreeSpace: 1, FreeInodes: 1, FreeMemory: 1, Load: 1, ClockSkew: 1}
	for _, text := range []string{
		"", "clock\n", "clock x\nload\ndisk 1 2\n", "memory -5\n", "clock NaN\nmemory +Inf\n", "load 5 0\n", "disk 0 0 0\n",
		"a line of a later version\n", "memory " + strings.Repeat("9", 400) + "\n",
	} {
		r, err := healthcheck.Parse("stepmux-health\n"+text, at, at)
		require.NoError(t, err, text)
		require.Equal(t, healthcheck.Reading{At: at}, r, text)
		require.NoError(t, all.Check(r), text)
	}
	long := "stepmux-health\n" + strings.Repeat("x", 5000)
	for _, text := range []string{"", "no such command\n", "stepmux-health", long} {
		_, err := healthcheck.Parse(text, at, at)
		require.EqualError(t, err, "the VM does not run the commands of a health check", text)
	}
}

func TestEachLimitIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, want string
		limits     healthcheck.Limits
	}{
		{"disk 100 1024 50 99", "", healthcheck.Limits{FreeSpace: 102400, FreeInodes: 50}},
		{
			"disk 1 1 1 9\ndisk 9 9 9 9", "its free space is 1B, and the limit free_space is 2GiB",
			healthcheck.Limits{FreeSpace: 2 << 30},
		},
		{
			"disk 9 4096 1 9\ndisk 9 9 9 9", "1 more files can be made, and the limit free_inodes is 2",
			healthcheck.Limits{FreeInodes: 2},
		},
		{"disk 9 4096 0 0", "", healthcheck.Limits{FreeInodes: 2}}, // as btrfs
		{
			"memory 1024", "its free memory is 1MiB, and the limit free_memory is 2MiB",
			healthcheck.Limits{FreeMemory: 2 << 20},
		},
		{"load 6.5 2", "its load is 3.25 for each processor, and the limit load is 3", healthcheck.Limits{Load: 3}},
		{"load 6.5 4", "", healthcheck.Limits{Load: 3}},
		{
			"clock 1799999990", "its clock is 9s off, and the limit clock_skew is 5s",
			healthcheck.Limits{ClockSkew: 5 * time.Second},
		},
		{
			"clock 1800000010", "its clock is 8s off, and the limit clock_skew is 5s",
			healthcheck.Limits{ClockSkew: 5 * time.Second},
		},
		{"clock 1799999995", "", healthcheck.Limits{ClockSkew: 5 * time.Second}},
		{"clock 1800000000", "", healthcheck.Limits{ClockSkew: time.Millisecond}},
		{"clock 1800000002", "", healthcheck.Limits{ClockSkew: time.Millisecond}},
	} {
		r, err := healthcheck.Parse("a banner\nstepmux-health\n"+c.text+"\n", at, at.Add(2*time.Second))
		require.NoError(t, err)
		if c.want == "" {
			require.NoError(t, c.limits.Check(r), c.text)
		} else {
			require.EqualError(t, c.limits.Check(r), c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("stepmux-health\nclock 1800000000\ndisk 1 2 3 4\nload 1 2\nmemory 5\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := healthcheck.Parse(text, at, at.Add(time.Second))
		if err != nil {
			return
		}
		if r.FreeSpace != nil && *r.FreeSpace < 0 || r.FreeInodes != nil && *r.FreeInodes < 0 ||
			r.FreeMemory != nil && *r.FreeMemory < 0 {
			t.Fatal("less than nothing")
		}
		_ = healthcheck.Default.Check(r)
	})
}
