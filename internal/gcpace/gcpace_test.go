package gcpace

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPercentIsHighForASmallHeapAndGosOwnForALargeOne(t *testing.T) {
	for mebibytes, want := range map[uint64]int{0: 400, 1: 400, 4: 400, 8: 200, 16: 100, 32: 100, 1 << 20: 100} {
		require.Equal(t, want, percentFor(mebibytes<<20), "%d MiB", mebibytes)
	}
}

// The variable makes this test binary a program with nothing live, which sets its pace and prints it.
const program = "STEPMUX_TEST_GCPACE"

func TestMain(m *testing.M) {
	if os.Getenv(program) != "" {
		Set()
		os.Stdout.WriteString(strconv.FormatUint(pace(), 10))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pace returns the pace that holds, as debug.SetGCPercent takes it.
func pace() uint64 {
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(percent)
	return percent[0].Value.Uint64()
}

func TestTheUsersPaceHolds(t *testing.T) {
	for gogc, want := range map[string]string{"": "400", "50": "50"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), program+"=1", "GOGC="+gogc)
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, want, string(out), "GOGC=%s", gogc)
	}
}

func TestThePaceFollowsTheLiveHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	Set()
	collectUntil(t, func() bool { return pace() > 100 })
	live := make([]byte, 64<<20)
	collectUntil(t, func() bool { return pace() == 100 })
	runtime.KeepAlive(live)
}

// collectUntil collects garbage until ok. The pace is adjusted after a collection, on another goroutine.
func collectUntil(t *testing.T, ok func() bool) {
	t.Helper()
	for !ok() {
		require.NoError(t, t.Context().Err())
		runtime.GC()
	}
}
