package faultrig

import "math"

// Fit is a line through samples by least squares.
type Fit struct {
	Samples int     `json:"samples"`
	Mean    float64 `json:"mean"`
	Slope   float64 `json:"slope_per_hour"`
	Error   float64 `json:"slope_error"` // the slope's standard error
	// Flat tells that the slope cannot be told from none: it is within three of its errors, or is down, or what it
	// makes in the time that was sampled is less than a hundredth of the mean.
	Flat bool `json:"flat"`
}

// fitLine fits y over x, which is in hours. Fewer than three samples, or all at one time, tell nothing: not Flat.
func fitLine(x, y []float64) Fit {
	n := float64(len(x))
	f := Fit{Samples: len(x)}
	if len(x) < 3 {
		return f
	}
	var mx, my float64
	for i := range x {
		mx, my = mx+x[i]/n, my+y[i]/n
	}
	var sxx, sxy float64
	for i := range x {
		sxx += (x[i] - mx) * (x[i] - mx)
		sxy += (x[i] - mx) * (y[i] - my)
	}
	f.Mean = my
	if sxx == 0 {
		return f
	}
	f.Slope = sxy / sxx
	var rest float64
	for i := range x {
		d := y[i] - my - f.Slope*(x[i]-mx)
		rest += d * d
	}
	f.Error = math.Sqrt(rest / (n - 2) / sxx)
	const errors, part = 3, 0.01
	f.Flat = f.Slope <= errors*f.Error || f.Slope*(x[len(x)-1]-x[0]) < part*my
	return f
}
