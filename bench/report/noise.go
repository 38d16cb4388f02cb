package main

import (
	"fmt"
	"strconv"
	"strings"
)

// noiseSuffix ends the name of a metric that tells the noise of another: how far its median may be off, in relation
// to it.
const noiseSuffix = "-noise"

const (
	// muchNoise is a noise with which a ratio does not tell much any more.
	muchNoise = 0.2
	// muchOther is the share of the processors from which on other work marks a run, and muchLoad is a load for each
	// processor at its start.
	muchOther, muchLoad = 0.1, 0.5
)

// noisy says why figures are not to be trusted: other work of the machine during the run, and ratios that varied too
// much.
func (r *results) noisy() []string {
	var all []string
	share, err := strconv.ParseFloat(strings.TrimSuffix(r.machine["others"], " % of the processors"), 64)
	if err == nil && share/100 > muchOther {
		all = append(all, fmt.Sprintf("the whole run: other work had %s", r.machine["others"]))
	}
	var load, processors float64
	if _, err := fmt.Sscan(r.machine["load"], &load); err == nil {
		if _, err := fmt.Sscan(r.machine["processors"], &processors); err == nil && load > muchLoad*processors {
			all = append(all, fmt.Sprintf("the whole run: the load was %g before it, on %g processors", load, processors))
		}
	}
	for _, name := range r.names {
		if metric, noise := r.noisiest(name); noise > muchNoise {
			all = append(all, fmt.Sprintf("%s: %s may be off by %.0f %%", name, metric, noise*100))
		}
	}
	return all
}

// noisiest returns the ratio of a benchmark that varied most, and its noise.
func (r *results) noisiest(bench string) (metric string, noise float64) {
	for unit := range r.values[bench] {
		of, ok := strings.CutSuffix(unit, noiseSuffix)
		if !ok || !strings.Contains(of, "-x/") {
			continue
		}
		if v, _ := r.value(bench, unit); v > noise || v == noise && of < metric {
			metric, noise = of, v
		}
	}
	return metric, noise
}
