package bench

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A candidate takes part in the comparison of a benchmark.
type candidate struct {
	name  string
	every int // takes part in every so many turns, for slow ones; if zero, in each
	// run measures once and adds its figures to the results.
	run func(r *results) error
}

// names returns the names of candidates.
func names(all []candidate) []string {
	var found []string
	for _, c := range all {
		found = append(found, c.name)
	}
	return found
}

// effort is the length of a benchmark: a multiple of -benchtime, and a least number of turns. With -benchtime 1x it is
// one turn.
type effort struct{ times, least int }

var (
	// usual is enough for medians.
	usual = effort{times: 2, least: 4}
	// tails is enough for the 99th percentile of times in milliseconds, and for their medians to a few percent.
	tails = effort{times: 6, least: 4}
	// many is for a distribution that is shown.
	many = effort{times: 6, least: 24}
	// costly is for turns that take seconds.
	costly = effort{times: 1, least: 3}
	// steady is for times of a tenth of a second that vary from turn to turn, steadier for figures that must be good to a
	// few percent.
	steady, steadier = effort{times: 4, least: 9}, effort{times: 4, least: 25}
	// twice is for turns that take long or measure much, and once for those of hundreds of builds.
	twice, once = effort{times: 1, least: 2}, effort{times: 1, least: 1}
)

// with returns the effort for n builds.
func (e effort) with(n int) effort {
	const crowd, hundreds = 8, 128
	switch {
	case n >= hundreds:
		return once
	case n >= crowd:
		return twice
	default:
		return e
	}
}

func (e effort) enough(turns int, took time.Duration) bool {
	limit, ok := benchtime()
	return !ok || turns >= e.least && took >= time.Duration(e.times)*limit
}

// benchtime returns the duration of -benchtime, or false if it is a number of turns.
func benchtime() (time.Duration, bool) {
	text := flag.Lookup("test.benchtime").Value.String()
	if strings.HasSuffix(text, "x") {
		return 0, false
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

// inTurns measures the candidates one after the other, again and again, so that a disturbance of the machine
// disturbs all alike. The first turn finds cold caches and is forgotten if there are others.
func inTurns(b *testing.B, e effort, all []candidate) *results {
	b.Helper()
	if testing.Short() { // for an impression
		e = effort{times: 1, least: min(e.least, 3)}
	}
	cold, r := newResults(b), newResults(b)
	for turn := 0; b.Loop(); {
		for begin := time.Now(); ; {
			to := r
			if turn == 0 {
				to = cold
			}
			to.take(turn, all)
			turn++
			if e.enough(turn, time.Since(begin)) {
				break
			}
		}
	}
	r.complete(cold)
	b.ReportMetric(0, "ns/op") // of all candidates together: it tells nothing
	b.Cleanup(r.keepSamples)
	return r
}

// take measures each candidate whose turn it is.
func (r *results) take(turn int, all []candidate) {
	r.b.Helper()
	for i := range all {
		at := (turn + i) % len(all) // else one would always come after the same neighbour's mess
		if turn%max(all[at].every, 1) == 0 {
			require.NoError(r.b, all[at].run(r), all[at].name)
		}
	}
	r.endTurn(turn)
}
