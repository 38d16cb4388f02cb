package faults

import "math"

// Fit is how what was sampled grows, by least squares.
type Fit struct {
	Samples int     `json:"samples"`
	Mean    float64 `json:"mean"`
	Slope   float64 `json:"slope_per_hour"`
	Error   float64 `json:"slope_error"` // the slope's standard error
	// Flat tells that the slope cannot be told from none: it is within three of its errors, or is down, or what it
	// makes in the time that was sampled is less than a hundredth of the mean.
	Flat bool `json:"flat"`
}

// fitBeside fits y over x, which is in hours, beside what follows from k: y = mean + slope x + part k, by least squares.
// If all k are the same that is a line. Fewer samples than are needed, or all at one time, tell nothing: not Flat.
func fitBeside(x, k, y []float64) Fit {
	f := Fit{Samples: len(x)}
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

// without returns what is left of y when its mean, and a line over k, are taken out.
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
