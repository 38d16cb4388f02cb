package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// mostLines is how many lines there are of a benchmark: enough for benchstat to tell a difference from noise.
const mostLines = 10

// machineKeys are the facts about the machine and the run, in this order.
var machineKeys = []string{
	"commit", "cpu", "processors", "kernel", "versions", "benchtime", "load", "others", "goos", "goarch",
}

// lines writes a run for benchstat: several lines for each benchmark, made of its turns, since a single median tells
// nothing about noise. A metric without turns is on the first line alone. The head holds the machineKeys.
func lines(w io.Writer, r *results, samples []sample) error {
	turns := make(map[string]map[string][]float64)
	for _, s := range samples {
		if s.Metric == "" {
			continue
		}
		if turns[s.Bench] == nil {
			turns[s.Bench] = make(map[string][]float64)
		}
		turns[s.Bench][s.Metric] = grouped(s.Values, mostLines)
	}
	out := bufio.NewWriter(w)
	for _, key := range machineKeys {
		if v := r.machine[key]; v != "" {
			fmt.Fprintf(out, "%s: %s\n", key, v)
		}
	}
	for _, bench := range r.names {
		for i := range mostLines {
			if line := r.line(bench, i, turns[bench]); line != "" {
				fmt.Fprintf(out, "Benchmark%s 1%s\n", bench, line)
			}
		}
	}
	return out.Flush()
}

// line returns the metrics of the i-th line of a benchmark.
func (r *results) line(bench string, i int, turns map[string][]float64) string {
	var b strings.Builder
	for _, unit := range r.units(bench) {
		switch values := turns[unit]; {
		case strings.HasSuffix(unit, noiseSuffix):
			// benchstat finds out by itself
		case i < len(values):
			fmt.Fprintf(&b, " %.5g %s", values[i], unit)
		case i == 0:
			v, _ := r.value(bench, unit)
			fmt.Fprintf(&b, " %.5g %s", v, unit)
		}
	}
	return b.String()
}

// grouped returns the medians of at most n groups of values that follow each other.
func grouped(values []float64, n int) []float64 {
	if len(values) <= n {
		return values
	}
	all := make([]float64, n)
	for i := range all {
		group := slices.Sorted(slices.Values(values[i*len(values)/n : (i+1)*len(values)/n]))
		all[i] = group[len(group)/2]
	}
	return all
}
