package bench

import (
	"encoding/json"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A candidate is one of those that a benchmark compares.
type candidate struct {
	name  string
	every int // takes part in every so many turns, for slow ones; if zero, in each
	// run measures once and adds what it found to the results.
	run func(r *results) error
}

// results are what the candidates were measured at, by name.
type results struct {
	b      *testing.B
	values map[string][]float64
}

func newResults(b *testing.B) *results {
	return &results{b: b, values: make(map[string][]float64)}
}

// inTurns measures the candidates one after the other, again and again, so that what disturbs the machine
// disturbs all alike. The first turn finds cold caches and is forgotten if there are others. The benchmark's
// time is that of the first candidate, which decides how many turns there are.
func inTurns(b *testing.B, all []candidate) *results {
	b.Helper()
	cold, r := newResults(b), newResults(b)
	for turn := 0; b.Loop(); turn++ {
		b.StopTimer()
		to := r
		if turn == 0 {
			to = cold
		}
		for i := range all {
			at := (turn + i) % len(all) // else one would always come after the same neighbour's mess
			if turn%max(all[at].every, 1) != 0 {
				continue
			}
			if at == 0 {
				b.StartTimer()
			}
			err := all[at].run(to)
			b.StopTimer()
			require.NoError(b, err, all[at].name)
		}
		b.StartTimer()
	}
	for name, values := range cold.values {
		if len(r.values[name]) == 0 {
			r.values[name] = values
		}
	}
	b.ReportMetric(0, "ns/op") // of the first candidate and what it takes to measure it
	r.spread(all[0].name)
	b.Cleanup(r.keepSamples)
	return r
}

// spread reports how far apart the middle half of the first candidate's figures is, in relation to the median: what
// the machine's other work does to them.
func (r *results) spread(name string) {
	const enough = 8
	if len(r.values[name]) >= enough {
		r.b.ReportMetric((r.quantile(name, 0.75)-r.quantile(name, 0.25))/r.quantile(name, 0.5), "spread")
	}
}

// samplesVar names the file to which samples are added, for who wants to see how they are distributed.
const samplesVar = "STEPMUX_BENCH_SAMPLES"

// keepSamples adds what was measured to the file, as JSON, a line for each candidate.
func (r *results) keepSamples() {
	name := os.Getenv(samplesVar)
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(r.b, err)
	defer f.Close()
	for _, candidate := range slices.Sorted(maps.Keys(r.values)) {
		require.NoError(r.b, json.NewEncoder(f).Encode(map[string]any{
			"bench": strings.TrimPrefix(r.b.Name(), "Benchmark"), "name": candidate, "values": r.values[candidate],
		}))
	}
}

// missing says which peer is not measured, and why.
func missing(b *testing.B, name string, why any) {
	b.Helper()
	b.Logf("missing: %s: %v", name, why)
}

func (r *results) add(name string, values ...float64) {
	r.values[name] = append(r.values[name], values...)
}

// quantile returns the smallest of what is known by that name, which must be something, that a share of q does
// not exceed.
func (r *results) quantile(name string, q float64) float64 {
	all := slices.Sorted(slices.Values(r.values[name]))
	return all[int(math.Ceil(q*float64(len(all))))-1]
}

// medians reports the median of each name, as name-unit. Names that were not measured are left out.
func (r *results) medians(unit string, names ...string) {
	for _, name := range names {
		if len(r.values[name]) > 0 {
			r.b.ReportMetric(r.quantile(name, 0.5), name+"-"+unit)
		}
	}
}

// latencies reports p50 and, if there are enough to tell, p99.
func (r *results) latencies(unit string, names ...string) {
	const enough = 100
	r.medians("p50-"+unit, names...)
	for _, name := range names {
		if len(r.values[name]) >= enough {
			r.b.ReportMetric(r.quantile(name, 0.99), name+"-p99-"+unit)
		}
	}
}

// ratio reports the median of name in relation to that of another, as name-x/as.
func (r *results) ratio(name, other, as string) {
	if len(r.values[name]) > 0 && len(r.values[other]) > 0 {
		r.b.ReportMetric(r.quantile(name, 0.5)/r.quantile(other, 0.5), name+"-x/"+as)
	}
}

// ratios reports all names but other in relation to it.
func (r *results) ratios(other string, names ...string) {
	for _, name := range names {
		if name != other {
			r.ratio(name, other, other)
		}
	}
}

// rate measures a transfer of n bytes in MB/s, and what it cost the VM's end.
func (r *results) rate(name string, n int64, transfer func() error) error {
	before, err := vmCPU()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := transfer(); err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := vmCPU()
	if err != nil {
		return err
	}
	r.add(name, float64(n)/mega/took.Seconds())
	r.add(name+cost, float64(n)/giga, (after - before).Seconds())
	return nil
}

// pings measures some round trips of a stream, in microseconds.
func (r *results) pings(name string, s io.ReadWriter) error {
	for range 50 {
		begin := time.Now()
		if err := ping(s); err != nil {
			return err
		}
		r.add(name, micros(time.Since(begin)))
	}
	return nil
}

// costs reports the processor time of the VM's end for each name, as name-vm-s/GB.
func (r *results) costs(names ...string) {
	for _, name := range names {
		// One transfer is too short for the clock of /proc; all together are not.
		var sum [2]float64
		for i, v := range r.values[name+cost] {
			sum[i%2] += v
		}
		if sum[0] > 0 {
			r.b.ReportMetric(sum[1]/sum[0], name+"-vm-s/GB")
		}
	}
}

const (
	mega, giga = 1e6, 1e9

	// cost is added to a name for gigabytes and seconds, in turns.
	cost = "-cost"
)

// trips reports latencies that were measured in microseconds over a distance as a number of round trips.
func (r *results) trips(rtt time.Duration, names ...string) {
	for _, name := range names {
		if len(r.values[name]) > 0 {
			r.b.ReportMetric(r.quantile(name, 0.5)/micros(rtt), name+"-trips")
		}
	}
}

// names returns the names of candidates.
func names(all []candidate) []string {
	var found []string
	for _, c := range all {
		found = append(found, c.name)
	}
	return found
}
