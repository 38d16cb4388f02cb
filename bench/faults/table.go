package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tally adds up rounds.
type tally struct {
	Kind   Kind
	Route  string
	Rounds int
	Faults int
	Missed int
	Builds int
	Lost   int
	Wrong  map[string]int
	// EndP50 and EndMax are how long after the fault builds that it cost ended, CleanMax how long after the last
	// build's end the VMs were clean, in milliseconds.
	EndP50   float64
	EndMax   float64
	CleanMax float64

	ends []float64
}

func (c *tally) add(r Result) {
	c.Rounds++
	c.Faults += r.Faults
	c.Missed += r.Missed
	c.Builds += r.Builds
	c.Lost += r.Lost
	c.ends = append(c.ends, r.EndMS...)
	c.CleanMax = max(c.CleanMax, r.CleanMS)
	for _, f := range r.Findings {
		if c.Wrong == nil {
			c.Wrong = map[string]int{}
		}
		c.Wrong[f.What]++
	}
}

func (c *tally) finish() {
	slices.Sort(c.ends)
	if n := len(c.ends); n > 0 {
		c.EndP50, c.EndMax = c.ends[n/2], c.ends[n-1]
	}
}

// tallyBy adds up results by key, in the order of the keys.
func tallyBy(results []Result, key func(Result) (Kind, string)) []tally {
	counts := map[[2]string]*tally{}
	for _, r := range results {
		kind, route := key(r)
		k := [2]string{string(kind), route}
		if counts[k] == nil {
			counts[k] = &tally{Kind: kind, Route: route}
		}
		counts[k].add(r)
	}
	var all []tally
	for _, c := range counts {
		c.finish()
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b tally) int {
		return strings.Compare(string(a.Kind)+" "+a.Route, string(b.Kind)+" "+b.Route)
	})
	return all
}

// NeedPrivate returns the kinds of faults that need namespaces.
func NeedPrivate() []Kind {
	var all []Kind
	for _, k := range everyKind {
		if kinds[k].private {
			all = append(all, k)
		}
	}
	return all
}

// SoakTable shows a soak for a terminal.
func SoakTable(r SoakResult) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%.0f s, %d builds in %d cycles, %d faults, %d builds lost, %d things wrong\n", r.Seconds, r.Builds,
		r.Cycles, r.Faults, r.Lost, len(r.Findings))
	for name, ms := range map[string][]float64{"back": r.BackMS, "back less login": r.BackLessLoginMS} {
		if len(ms) > 0 {
			fmt.Fprintf(&s, "%-15s %4d links, after p50 %.0f p99 %.0f max %.0f ms\n", name, len(ms), percentile(ms, 50),
				percentile(ms, 99), percentile(ms, 100))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Fits)) {
		f := r.Fits[name]
		fmt.Fprintf(&s, "%-10s mean %14.1f  grows by %12.1f +- %.1f an hour  flat: %v\n", name, f.Mean, f.Slope, f.Error,
			f.Flat)
	}
	return s.String()
}

// percentile returns the p-th percentile of values. There must be at least one value.
func percentile(values []float64, p int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)*p/100]
}

// Table shows results for a terminal.
func Table(results []Result) string {
	var s strings.Builder
	for _, c := range tallyBy(results, func(r Result) (Kind, string) { return r.Kind, "" }) {
		fmt.Fprintf(&s,
			"%-13s rounds %4d faults %5d missed %4d builds %5d lost %5d end p50 %6.0f max %6.0f ms clean max %6.0f ms %v\n",
			c.Kind, c.Rounds, c.Faults, c.Missed, c.Builds, c.Lost, c.EndP50, c.EndMax, c.CleanMax, c.Wrong)
	}
	return s.String()
}
