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

// results are the measurements of the candidates, by name.
type results struct {
	b      *testing.B
	values map[string][]float64
	turns  map[string]map[int]float64 // medians of turns
	seen   map[string]int             // how many values of each belong to turns that have ended
	spent  map[string]*spending

	reported map[string][]float64 // by metric, what its turns were, in their order
}

func newResults(b *testing.B) *results {
	return &results{
		b: b, values: make(map[string][]float64), turns: make(map[string]map[int]float64), seen: make(map[string]int),
		spent: make(map[string]*spending), reported: make(map[string][]float64),
	}
}

// endTurn remembers the medians of the values added since the last turn.
func (r *results) endTurn(turn int) {
	for name, values := range r.values {
		if from := r.seen[name]; from < len(values) {
			if r.turns[name] == nil {
				r.turns[name] = make(map[int]float64)
			}
			r.turns[name][turn] = quantile(values[from:], 0.5)
			r.seen[name] = len(values)
		}
	}
}

// complete takes the values from the cold turn that were not measured in another turn.
func (r *results) complete(cold *results) {
	for name, values := range cold.values {
		if len(r.values[name]) == 0 {
			r.values[name], r.turns[name] = values, cold.turns[name]
		}
	}
	for name, spent := range cold.spent {
		if r.spent[name] == nil {
			r.spent[name] = spent
		}
	}
}

// samplesVar names the file to which samples are added, for pictures of their distribution.
const samplesVar = "STEPMUX_BENCH_SAMPLES"

// keepSamples adds the samples to the file, as JSON: a line for each candidate, and one for each metric that has
// its turns.
func (r *results) keepSamples() {
	name := os.Getenv(samplesVar)
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(r.b, err)
	defer f.Close()
	write := func(kind string, of map[string][]float64) {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			line := map[string]any{"bench": strings.TrimPrefix(r.b.Name(), "Benchmark"), kind: name, "values": of[name]}
			require.NoError(r.b, json.NewEncoder(f).Encode(line))
		}
	}
	write("name", r.values)
	write("metric", r.reported)
}

// missing says which peer is not measured, and why.
func missing(b *testing.B, name string, why any) {
	b.Helper()
	b.Logf("missing: %s: %s: %v", strings.TrimPrefix(b.Name(), "Benchmark"), name, why)
}

func (r *results) add(name string, values ...float64) {
	r.values[name] = append(r.values[name], values...)
}

// quantile returns a quantile of the values of a name, of which there must be some.
func (r *results) quantile(name string, q float64) float64 { return quantile(r.values[name], q) }

// quantile returns the smallest of values, of which there must be one, that a share of q does not exceed.
func quantile(values []float64, q float64) float64 {
	all := slices.Sorted(slices.Values(values))
	return all[max(int(math.Ceil(q*float64(len(all)))), 1)-1]
}

// report reports a figure that was measured in several turns, and as its noise how far its median may be off, in
// relation to it: half of the 95 % interval that box plots have as their notch (McGill, Tukey, Larsen 1978).
func (r *results) report(figure float64, turns []float64, unit string) {
	const enough = 4
	r.b.ReportMetric(figure, unit)
	r.reported[unit] = turns
	if median := quantile(append(turns, figure), 0.5); len(turns) >= enough && median != 0 {
		spread := quantile(turns, 0.75) - quantile(turns, 0.25)
		r.b.ReportMetric(1.57*spread/math.Sqrt(float64(len(turns)))/math.Abs(median), unit+"-noise")
	}
}

// median reports the median of the values of a name as metric, if the name was measured.
func (r *results) median(name, metric string) {
	if len(r.values[name]) > 0 {
		r.report(r.quantile(name, 0.5), inOrder(r.turns[name]), metric)
	}
}

// medians reports the median of each name, as name-unit.
func (r *results) medians(unit string, names ...string) {
	for _, name := range names {
		r.median(name, name+"-"+unit)
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

// inOrder returns the values of all turns, in their order.
func inOrder(turns map[int]float64) []float64 {
	var all []float64
	for _, turn := range slices.Sorted(maps.Keys(turns)) {
		all = append(all, turns[turn])
	}
	return all
}

// ratio reports the median of name in relation to that of another, as name-x/as.
func (r *results) ratio(name, other, as string) {
	if len(r.values[name]) == 0 || len(r.values[other]) == 0 {
		return
	}
	turns := make(map[int]float64)
	for turn, v := range r.turns[name] {
		if o := r.turns[other][turn]; o != 0 {
			turns[turn] = v / o
		}
	}
	r.report(r.quantile(name, 0.5)/r.quantile(other, 0.5), inOrder(turns), name+"-x/"+as)
}

// ratios reports all names but other in relation to it.
func (r *results) ratios(other string, names ...string) {
	for _, name := range names {
		if name != other {
			r.ratio(name, other, other)
		}
	}
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

// trips reports latencies that were measured in microseconds over a distance as a number of round trips.
func (r *results) trips(rtt time.Duration, names ...string) {
	for _, name := range names {
		if len(r.values[name]) > 0 {
			r.b.ReportMetric(r.quantile(name, 0.5)/micros(rtt), name+"-trips")
		}
	}
}

const (
	mega, giga = 1e6, 1e9
	kibi, mebi = 1 << 10, 1 << 20
)

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
