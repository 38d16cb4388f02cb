package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// run1 is the output of a run, in small.
const run1 = `load: 1.5 at the start
processors: 2
commit: 0123abc
goos: linux
cpu: AMD EPYC
BenchmarkSpawnLatency/first-byte/CapacityPerInstance=1-2  1  1.6 relay-x/fork  0.12 relay-x/fork-noise` +
	"  1000 fork-p50-µs  2000 relay-p50-µs  6000 fresh-dial-p50-µs" + `
--- BENCH: BenchmarkSpawnLatency/first-byte/CapacityPerInstance=1-2
    spawn_start_test.go:1: missing: SpawnLatency/first-byte/CapacityPerInstance=1: ssh: not there
    spawn_start_test.go:1: missing: SpawnLatency/first-byte/CapacityPerInstance=1: ssh: not there
BenchmarkProxyThroughput/down/CapacityPerInstance=1-2  1  400 relay-MB/s  800 raw-MB/s` +
	"  0.5 relay-x/raw  0.3 relay-x/raw-noise" + `
BenchmarkProxyThroughput/down/CapacityPerInstance=8-2  1  300 relay-MB/s  700 raw-MB/s
BenchmarkDensity/serve-idle  1  8 serve-PSS-MiB
PASS
others: 37 % of the processors
`

func read(t *testing.T, text string) *results {
	t.Helper()
	name := filepath.Join(t.TempDir(), "bench.txt")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	r, err := readResults(name)
	require.NoError(t, err)
	return r
}

func TestNamesLoseTheNumberOfProcessorsAndNothingElse(t *testing.T) {
	require.Equal(t, []string{
		"SpawnLatency/first-byte/CapacityPerInstance=1", "ProxyThroughput/down/CapacityPerInstance=1",
		"ProxyThroughput/down/CapacityPerInstance=8", "Density/serve-idle",
	}, read(t, run1).names)
}

func TestMissingPeersAreNamedOnce(t *testing.T) {
	require.Equal(t, []string{"SpawnLatency/first-byte/CapacityPerInstance=1: ssh: not there"}, read(t, run1).missing)
}

func TestAGoalIsMetWithinItsNoiseButNotWithinAny(t *testing.T) {
	r := read(t, run1)
	word := func(g goal) string { return g.judge(r).word() }
	start := goal{bench: firstByte, metric: "relay-x/fork"} // 1.6, may be off by 12 %
	rate := goal{bench: oneDown, metric: "relay-x/raw"}     // 0.5, may be off by 30 %
	idle := goal{bench: "Density/serve-idle", metric: "serve-PSS-MiB"}
	for _, c := range []struct {
		of          goal
		most, least float64
		word        string
	}{
		{start, 1.7, 0, "met"},
		{start, 1.44, 0, "met within noise"}, // by 11 %
		{start, 1.4, 0, "missed"},            // by 14 %
		{rate, 0, 0.4, "met"},
		{rate, 0, 0.6, "met within noise"}, // by 20 %
		{rate, 0, 0.64, "missed"},          // by 28 %: more than any noise excuses
		{idle, 7.5, 0, "met within noise"}, // by 7 %
		{idle, 7, 0, "missed"},             // by 14 %, and its noise is not known
		{goal{bench: oneDown, metric: "raw-x/relay"}, 1, 0, "not measured"},
	} {
		c.of.most, c.of.least = c.most, c.least
		require.Equal(t, c.word, word(c.of), "%+v", c.of)
	}
	over := goal{bench: oneDown, metric: "raw-MB/s", over: "relay-MB/s", most: 2}
	require.InDelta(t, 2, over.judge(r).measured, 0)
}

func TestCheckFailsWhereAGoalIsMissedOrNotMeasured(t *testing.T) {
	var out bytes.Buffer
	require.ErrorContains(t, check(&out, read(t, run1)), "are missed or were not measured")
	require.Contains(t, out.String(), "not measured")
	require.Contains(t, out.String(), "missing: SpawnLatency/first-byte/CapacityPerInstance=1: ssh: not there")
	require.Contains(t, out.String(), "noisy: the whole run: other work had 37 % of the processors")
}

func TestAGoalWithAPeerThatIsNotInEachRunCountsOnlyIfItWasMeasured(t *testing.T) {
	all := goals
	t.Cleanup(func() { goals = all })
	goals = []goal{{says: "beside a base", bench: oneDown, metric: "now-x/base", most: 0.5, given: true}}
	require.NoError(t, check(t.Output(), read(t, run1)))
	measured := strings.Replace(run1, "0.5 relay-x/raw ", "0.9 now-x/base  0.5 relay-x/raw ", 1)
	require.ErrorContains(t, check(t.Output(), read(t, measured)), "1 of 1 goals")
}

func TestARunIsNoisyByItsLoadItsNeighboursAndItsRatios(t *testing.T) {
	require.Equal(t, []string{
		"the whole run: other work had 37 % of the processors",
		"the whole run: the load was 1.5 before it, on 2 processors",
		"ProxyThroughput/down/CapacityPerInstance=1: relay-x/raw may be off by 30 %",
	}, read(t, run1).noisy())
	quiet := strings.NewReplacer("load: 1.5", "load: 0.3", "others: 37", "others: 3", "0.3 relay-x/raw-noise",
		"0.1 relay-x/raw-noise")
	require.Empty(t, read(t, quiet.Replace(run1)).noisy())
}

func TestReasonsAreToldOnceForAllTheirBenchmarks(t *testing.T) {
	r := &results{missing: []string{
		"Neighbour/flood/CapacityPerInstance=2: ssh: it carries bytes as raw does",
		"Spawn/vm=warm/CapacityPerInstance=128: raw: not with 128 at once: ten sessions",
		"Spawn/vm=warm/CapacityPerInstance=512: raw: not with 512 at once: ten sessions",
		"Density/CapacityPerInstance=512: raw: not with 512 at once: ten sessions",
	}}
	require.Equal(t, []string{
		"ssh: it carries bytes as raw does (Neighbour/flood/CapacityPerInstance=2)",
		"raw: ten sessions (Spawn/vm=warm/CapacityPerInstance=128, 512; Density/CapacityPerInstance=512)",
	}, r.missingByReason())
}

func TestLinesForBenchstatHaveEachTurnAndTheMachine(t *testing.T) {
	turns := make([]float64, 40)
	for i := range turns {
		turns[i] = float64(i)
	}
	var out bytes.Buffer
	require.NoError(t, lines(&out, read(t, run1), []sample{
		{Bench: oneDown, Metric: "relay-MB/s", Values: []float64{390, 400, 410}},
		{Bench: firstByte, Metric: "relay-x/fork", Values: turns},
		{Bench: firstByte, Name: "relay", Values: []float64{1}}, // no metric
	}))
	again := read(t, out.String())
	require.Equal(t, "0123abc", again.machine["commit"])
	require.Equal(t, "37 % of the processors", again.machine["others"])
	require.Equal(t, []float64{390, 400, 410}, again.values[oneDown]["relay-MB/s"])
	require.Equal(t, []float64{800}, again.values[oneDown]["raw-MB/s"], "has no turns")
	require.Len(t, again.values[firstByte]["relay-x/fork"], mostLines)
	require.NotContains(t, out.String(), noiseSuffix)
}

func TestAComparisonFailsForStableFiguresThatBecameWorse(t *testing.T) {
	run := func(goroutines, streamlocal float64) *results {
		return read(t, fmt.Sprintf("BenchmarkDensity/CapacityPerInstance=8-2 1 %g relay-goroutines/build\n"+
			"BenchmarkProxyThroughput/up/CapacityPerInstance=1-2 1 2 raw-client-s/GB %g streamlocal-client-s/GB\n",
			goroutines, streamlocal))
	}
	base := run(7, 2)
	require.NoError(t, compare(t.Output(), base, run(7.5, 3.9)))
	require.ErrorContains(t, compare(t.Output(), base, run(8, 2)), "1 of 2 stable figures")
	require.ErrorContains(t, compare(t.Output(), base, run(8, 4.1)), "2 of 2 stable figures")
	once := run(8, 4.1)
	once.machine["benchtime"] = oneTurn
	require.ErrorContains(t, compare(t.Output(), base, once), "1 of 2 stable figures", "one turn tells no processor times")
	require.ErrorContains(t, compare(t.Output(), base, read(t, run1)), "no stable figure in common")
}

func TestThePageHasTablesAndPicturesInTheReadersColours(t *testing.T) {
	page := filepath.Join(t.TempDir(), "benchmarks.md")
	samples := []sample{
		{Bench: firstByte, Name: "fork", Values: []float64{1000, 2000, 4000}},
		{Bench: firstByte, Name: "fork-refused", Values: []float64{0, 0, 0}}, // is no latency
		{Bench: warm, Name: "auto", Values: []float64{1000, 2000, 4000}},     // is no part of the run
	}
	require.NoError(t, write(read(t, run1), samples, page, ""))
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "| relay | 400 | 0.5 ±30% |")
	first, rest, _ := strings.Cut(string(text), "\n## ")
	require.Contains(t, first, "benchmarks/start.svg", "the page opens with a picture")
	require.Contains(t, first, "| Process on a known VM, to its first byte | 2.0 ms | - | 6.0 ms (3.0 times as long) |")
	require.NotContains(t, first, "First build on a VM", "was not measured")
	require.Contains(t, rest, "\nNot measured:\n\n- ssh: not there (SpawnLatency/first-byte/CapacityPerInstance=1)\n")
	require.Less(t, strings.Index(rest, "## All figures"), strings.Index(rest, "Not measured:\n"), "notes come last")
	for _, file := range []string{"start.svg", "throughput-down.svg"} {
		require.Contains(t, string(text), "benchmarks/"+file)
		svg, err := os.ReadFile(filepath.Join(filepath.Dir(page), "benchmarks", file))
		require.NoError(t, err)
		require.Contains(t, string(svg), "prefers-color-scheme:dark")
		require.Contains(t, string(svg), "currentColor")
		require.NotContains(t, string(svg), "#010203", "the ink")
	}
	require.NotContains(t, string(text), "build-start.svg", "there are no figures for it")
}

// What has no logarithm used to end the program.
func TestPicturesAreDrawnOfWhateverThereIs(t *testing.T) {
	for _, text := range []string{
		"BenchmarkProxyThroughput/down/CapacityPerInstance=8-2  1  300 relay-MB/s\n", // one number of builds
		"BenchmarkProxyThroughput/down/CapacityPerInstance=8-2  1  300 relay-MB/s  0 raw-MB/s\n",
		"BenchmarkProxyThroughput/down/CapacityPerInstance=0-2  1  300 relay-MB/s\n",
		"BenchmarkNeighbour/flood/CapacityPerInstance=2-2  1  0 relay-alone-p50-µs  5 relay-alone-p99-µs\n",
		"BenchmarkProxyThroughput/FollowIO-2  1  NaN relay-MB/s  3 raw-MB/s\n",
		"BenchmarkDistance/first-answer/rtt=far-2  1  3 raw-p50-µs\n",
	} {
		_, err := draw(read(t, text), nil, t.TempDir())
		require.NoError(t, err, text)
	}
}
