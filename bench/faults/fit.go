package faults

import "math"

// fit is the growth of a sampled quantity, by least squares.
type fit struct {
	Samples int     `json:"samples"`
	Mean    float64 `json:"mean"`
	Slope   float64 `json:"slope_per_hour"`
	Error   float64 `json:"slope_error"` // the slope's standard error
	// Flat reports that the quantity does not grow: its slope is negative or within three standard errors of zero, or
	// it adds less than a hundredth of the mean in the sampled time.
	Flat bool `json:"flat"`
}

// fitBeside fits y = mean + slope x + part k by least squares, x in hours. If all k are equal, this is a line. With too
// few samples, or all samples at one time, the fit is not Flat.
func fitBeside(x, k, y []float64) fit {
	f := fit{Samples: len(x)}
	if len(x) < 4 {
		return f
	}
	f.Mean = mean(y)
	// What k explains is taken out of both (Frisch, Waugh and Lovell): the slope of the rest over the rest is the same.
	rx, ry := without(k, x), without(k, y)
	sxx := product(rx, rx)
	if sxx <= 1e-12*product(x, x) {
		return f
	}
	f.Slope = product(rx, ry) / sxx
	var rest float64
	for i := range rx {
		d := ry[i] - f.Slope*rx[i]
		rest += d * d
	}
	f.Error = math.Sqrt(rest / float64(len(x)-3) / sxx)
	const errors, part = 3, 0.01
	f.Flat = f.Slope <= errors*f.Error || f.Slope*(x[len(x)-1]-x[0]) < part*f.Mean
	return f
}

// without returns y less its mean and its regression on k.
func without(k, y []float64) []float64 {
	mk, my := mean(k), mean(y)
	dk, dy := make([]float64, len(k)), make([]float64, len(y))
	for i := range y {
		dk[i], dy[i] = k[i]-mk, y[i]-my
	}
	if s := product(dk, dk); s > 0 {
		slope := product(dk, dy) / s
		for i := range dy {
			dy[i] -= slope * dk[i]
		}
	}
	return dy
}

func product(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func mean(y []float64) (m float64) {
	for _, v := range y {
		m += v / float64(len(y))
	}
	return m
}
