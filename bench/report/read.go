package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// results are the figures of a run, by benchmark and by metric, and the facts about the machine.
type results struct {
	names   []string // of the benchmarks, in the order they ran
	values  map[string]map[string][]float64
	machine map[string]string
	missing []string // peers that were not there
}

// readResults reads the output of go test -bench.
func readResults(name string) (*results, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: run make bench first", err)
	}
	defer f.Close()
	r := &results{values: make(map[string]map[string][]float64), machine: make(map[string]string)}
	var text strings.Builder
	lines := benchfmt.NewReader(io.TeeReader(f, &text), name)
	for lines.Scan() {
		result, ok := lines.Result().(*benchfmt.Result)
		if !ok {
			continue // a line of another kind
		}
		r.add(result)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(r.names) == 0 {
		return nil, fmt.Errorf("%s holds no benchmark results: run make bench first", name)
	}
	for line := range strings.Lines(text.String()) {
		if _, what, ok := strings.Cut(line, "missing: "); ok {
			if what = strings.TrimSpace(what); !slices.Contains(r.missing, what) {
				r.missing = append(r.missing, what)
			}
		}
		if share, ok := strings.CutPrefix(line, "others: "); ok {
			r.machine["others"] = strings.TrimSpace(share)
		}
	}
	return r, nil
}

func (r *results) add(result *benchfmt.Result) {
	base, parts := result.Name.Parts()
	if n := len(parts); n > 0 && parts[n-1][0] == '-' {
		parts = parts[:n-1] // the number of processors
	}
	name := string(base) + string(bytes.Join(parts, nil))
	if r.values[name] == nil {
		r.values[name] = make(map[string][]float64)
		r.names = append(r.names, name)
	}
	for _, v := range result.Values {
		value, unit := v.Value, v.Unit
		if v.OrigUnit != "" {
			value, unit = v.OrigValue, v.OrigUnit
		}
		r.values[name][unit] = append(r.values[name][unit], value)
	}
	for _, c := range result.Config {
		r.machine[c.Key] = string(c.Value)
	}
}

// value returns the median of a metric over the runs of a benchmark.
func (r *results) value(bench, metric string) (float64, bool) {
	all := slices.Sorted(slices.Values(r.values[bench][metric]))
	if len(all) == 0 {
		return 0, false
	}
	return all[len(all)/2], true
}

// units returns the metrics of a benchmark, sorted.
func (r *results) units(bench string) []string { return slices.Sorted(maps.Keys(r.values[bench])) }

// sample holds the measurements of one candidate of a benchmark, or the values of a metric, one for each turn.
type sample struct {
	Bench  string    `json:"bench"`
	Name   string    `json:"name"`   // of the candidate
	Metric string    `json:"metric"` // instead
	Values []float64 `json:"values"`
}

// readSamples reads the file that the benchmarks wrote to STEPMUX_BENCH_SAMPLES. An empty name means no samples.
func readSamples(name string) ([]sample, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []sample
	for lines := json.NewDecoder(bufio.NewReader(f)); ; {
		var s sample
		if err := lines.Decode(&s); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, s)
	}
}
