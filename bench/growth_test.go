package bench

import (
	"maps"
	"math"
	"slices"
	"testing"
)

// growth is a cost by the number of builds it is for.
type growth map[int]float64

// fit fits the cost to a power of the number, by least squares of the logarithms, and returns the exponent: 1 is
// linear, 2 quadratic. Costs that are not positive tell nothing.
func (g growth) fit() (exponent float64) {
	var n, sx, sy, sxx, sxy float64
	for number, cost := range g {
		if cost <= 0 {
			continue
		}
		x, y := math.Log(float64(number)), math.Log(cost)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// overLinear returns how many times more than linear the cost of the largest number is: the cost of each there, divided
// by the median of the costs of each at the other numbers.
func (g growth) overLinear() float64 {
	numbers := slices.Sorted(maps.Keys(g))
	var each []float64
	for _, number := range numbers {
		each = append(each, g[number]/float64(number))
	}
	last := len(each) - 1
	return each[last] / quantile(each[:last], 0.5)
}

// report prints how a cost grows. With one number there is nothing to tell.
func (g growth) report(b *testing.B, name string) {
	if len(g) < 2 {
		return
	}
	b.ReportMetric(g.fit(), name+"-exponent")
	b.ReportMetric(g.overLinear(), name+"-x/linear")
}
