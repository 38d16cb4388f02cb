package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

// stable is a figure that hardly depends on the machine or on other work on it: a count, or a ratio within one run. A
// comparison fails if it has become worse by more than its limit.
type stable struct {
	bench, metric string
	over          string  // a metric of the same benchmark to divide by; may be empty
	limit         float64 // how many times the base's figure is allowed
}

const (
	// exact is the limit of counts that do not vary.
	exact = 1.001
	// counted is the limit of counts that hardly vary, such as one goroutine more for each eighth build.
	counted = 1.09
	// doubled is the limit of ratios of allocations and of processor times: a short run tells no more.
	doubled = 2
)

// stables are all of them. Where the base or the run lacks one, there is nothing to compare.
var stables = []stable{
	{"Density/CapacityPerInstance=1", "auto-conns", "", exact},
	{"Density/CapacityPerInstance=8", "auto-conns", "", exact},
	{"Density/CapacityPerInstance=8", "auto-sessions", "", exact},
	{"Density/CapacityPerInstance=8", "auto-goroutines/build", "", counted},
	{"Density/CapacityPerInstance=8", "relay-goroutines/build", "", counted},
	{"Density/CapacityPerInstance=8", "running-goroutines/build", "", counted},
	{"Density/CapacityPerInstance=8", "relay-running-goroutines/build", "", counted},
	{uncontended, "allocs/op", "", exact},
	{oneDown, "streamlocal-allocs/MB", "raw-allocs/MB", doubled},
	{oneDown, "relay-allocs/MB", "raw-allocs/MB", doubled},
	{oneUp, "streamlocal-allocs/MB", "raw-allocs/MB", doubled},
	{oneUp, "relay-allocs/MB", "raw-allocs/MB", doubled},
	{oneDown, "streamlocal-client-s/GB", "raw-client-s/GB", doubled},
	{oneDown, "relay-client-s/GB", "raw-client-s/GB", doubled},
	{oneUp, "streamlocal-client-s/GB", "raw-client-s/GB", doubled},
	{oneUp, "relay-client-s/GB", "raw-client-s/GB", doubled},
}

func (s stable) name() string {
	if s.over == "" {
		return s.bench + " " + s.metric
	}
	return s.bench + " " + s.metric + " over " + s.over
}

// in returns the figure of a run.
func (s stable) in(r *results) (float64, bool) {
	v, ok := r.value(s.bench, s.metric)
	if ok && s.over != "" {
		var over float64
		over, ok = r.value(s.bench, s.over)
		v /= over
	}
	return v, ok
}

// compare prints the stable figures of a run and of its base. The error says how many have become worse.
func compare(w io.Writer, base, now *results) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "figure\tbase\tnow\tat most\t")
	compared, worse := 0, 0
	for _, s := range stables {
		before, known := s.in(base)
		after, ok := s.in(now)
		if !known || !ok {
			continue
		}
		compared++
		verdict := ""
		if !(after <= before*s.limit) { // also if it is no number
			worse++
			verdict = "worse"
		}
		fmt.Fprintf(table, "%s\t%.3g\t%.3g\t%.3g\t%s\n", s.name(), before, after, before*s.limit, verdict)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	switch {
	case compared == 0:
		return errors.New("the run and its base have no stable figure in common")
	case worse > 0:
		return fmt.Errorf("%d of %d stable figures are worse than in the base", worse, compared)
	default:
		return nil
	}
}
