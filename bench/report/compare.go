package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

// stable is a figure that hardly depends on the machine or on other work on it: a count, or a ratio within one run. A
// comparison fails if it has become worse by more than its limit, unless one turn is too few to tell.
type stable struct {
	bench, metric string
	over          string  // a metric of the same benchmark to divide by; may be empty
	limit         float64 // how many times the base's figure is allowed
	timed         bool    // it needs many turns: it is shown for a run with one, and not judged
}

// oneTurn is the benchtime of a run that measures each figure once.
const oneTurn = "1x"

const (
	// exact is the limit of counts that do not vary.
	exact = 1.001
	// counted is the limit of counts that hardly vary, such as one goroutine more for each eighth build.
	counted = 1.09
	// doubled is the limit of ratios of allocations and of processor times: a short run tells no more. In ten runs with
	// one turn each, on a machine with much other work, the former were 0.85 to 1.2 times the baseline and the latter 0.6
	// to 1.7 times.
	doubled = 2
)

// stables are all of them. Where the base or the run lacks one, there is nothing to compare.
var stables = []stable{
	{"Density/CapacityPerInstance=1", "auto-conns", "", exact, false},
	{"Density/CapacityPerInstance=8", "auto-conns", "", exact, false},
	{"Density/CapacityPerInstance=8", "auto-sessions", "", exact, false},
	{"Density/CapacityPerInstance=8", "auto-goroutines/build", "", counted, false},
	{"Density/CapacityPerInstance=8", "relay-goroutines/build", "", counted, false},
	{"Density/CapacityPerInstance=8", "running-goroutines/build", "", counted, false},
	{"Density/CapacityPerInstance=8", "relay-running-goroutines/build", "", counted, false},
	{uncontended, "allocs/op", "", exact, false},
	{oneDown, "streamlocal-allocs/MB", "raw-allocs/MB", doubled, false},
	{oneDown, "relay-allocs/MB", "raw-allocs/MB", doubled, false},
	{oneUp, "streamlocal-allocs/MB", "raw-allocs/MB", doubled, false},
	{oneUp, "relay-allocs/MB", "raw-allocs/MB", doubled, false},
	{oneDown, "streamlocal-client-s/GB", "raw-client-s/GB", doubled, true},
	{oneDown, "relay-client-s/GB", "raw-client-s/GB", doubled, true},
	{oneUp, "streamlocal-client-s/GB", "raw-client-s/GB", doubled, true},
	{oneUp, "relay-client-s/GB", "raw-client-s/GB", doubled, true},
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
		switch {
		case after <= before*s.limit:
		case s.timed && now.machine["benchtime"] == oneTurn:
			verdict = "not judged: one turn"
		default: // also if it is no number
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
