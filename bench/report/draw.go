package main

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// picture is a plot that was drawn.
type picture struct {
	file, title, says string
	bench             string // that its figures come from
}

const (
	pictureWidth  = 18 * vg.Centimeter
	pictureHeight = 10 * vg.Centimeter
)

// ink is what the plots are drawn with; the file replaces it by what can be read on the reader's background.
var ink = color.NRGBA{0x01, 0x02, 0x03, 0xff}

// colors tell candidates apart, on white and on black alike.
var colors = map[string]color.Color{
	"auto": color.NRGBA{0x0f, 0xb5, 0xae, 0xff}, "relay": color.NRGBA{0x1f, 0x9e, 0x57, 0xff},
	"streamlocal": color.NRGBA{0x2f, 0x81, 0xf7, 0xff}, "session": color.NRGBA{0x9a, 0x5c, 0xe6, 0xff},
	"fresh-dial": color.NRGBA{0xd9, 0x48, 0x3b, 0xff}, "control-master": color.NRGBA{0xe0, 0x8a, 0x1e, 0xff},
	"ssh": color.NRGBA{0xb0, 0x6a, 0x4a, 0xff}, "fork": color.NRGBA{0x7d, 0x85, 0x90, 0xff},
	"local": color.NRGBA{0x7d, 0x85, 0x90, 0xff}, "raw": color.NRGBA{0x7d, 0x85, 0x90, 0xff},
}

func colorOf(name string) color.Color {
	if c, ok := colors[name]; ok {
		return c
	}
	return color.NRGBA{0x3f, 0xb0, 0xac, 0xff}
}

// draw draws what the run has figures for.
func draw(r *results, samples []sample, dir string) ([]picture, error) {
	var drawn []picture
	for _, d := range []struct {
		picture
		plot func() *plot.Plot
	}{
		{
			picture{"build-start.svg", "The start of a build", "From the request to the step runner's first answer, on a VM that is known: " +
				"the share of builds that took at most so long. Left is better.", "BuildStart/rtt=0s"},
			func() *plot.Plot { return distribution(samples, "BuildStart/rtt=0s") },
		},
		{
			picture{"start.svg", "The start of a process", "To its first byte: the share of starts that took at most so long. Left is better.", "^BenchmarkStart$/rtt=0s"},
			func() *plot.Plot { return distribution(samples, "Start/rtt=0s") },
		},
		{
			picture{"throughput.svg", "Throughput of many bridges", "All bridges together, by how many there are. Higher is better.", "Throughput"},
			func() *plot.Plot { return series(r, "Throughput/builds=", "-MB/s", "builds at once", "MB/s") },
		},
		{
			picture{"memory.svg", "Memory for each build", "Heap of the manager for each process or build that is open on one connection. Flat is linear.", "Density"},
			func() *plot.Plot {
				return series(r, "Density/processes=", "-KiB/build", "processes at once", "KiB for each")
			},
		},
		{
			picture{"ping.svg", "A ping beside a download", "A small round trip alone, beside a download on the same connection, and beside one on another " +
				"connection: what the machine itself makes of it. Lower is better.", "Ping"},
			func() *plot.Plot { return pings(r) },
		},
	} {
		p := d.plot()
		if p == nil {
			continue
		}
		if err := save(p, filepath.Join(dir, d.file)); err != nil {
			return nil, fmt.Errorf("draw %s: %w", d.file, err)
		}
		drawn = append(drawn, d.picture)
	}
	return drawn, nil
}

// distribution draws how the samples of a benchmark are distributed, nil if there are none.
func distribution(samples []sample, bench string) *plot.Plot {
	p := newPlot("milliseconds", "share")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plainTicks{}
	found := false
	for _, s := range samples {
		if s.Bench != bench || len(s.Values) < 3 {
			continue
		}
		found = true
		all := slices.Sorted(slices.Values(s.Values))
		points := make(plotter.XYs, len(all))
		for i, v := range all {
			points[i] = plotter.XY{X: v / 1000, Y: float64(i+1) / float64(len(all))}
		}
		addLine(p, s.Name, points)
	}
	if !found {
		return nil
	}
	return p
}

// series draws a metric of each candidate over the number that the benchmarks' names end with.
func series(r *results, prefix, unit, x, y string) *plot.Plot {
	lines := make(map[string]plotter.XYs)
	for _, name := range r.names {
		n, err := strconv.ParseFloat(strings.TrimPrefix(name, prefix), 64)
		if err != nil || !strings.HasPrefix(name, prefix) {
			continue
		}
		for metric := range r.values[name] {
			if candidate, ok := strings.CutSuffix(metric, unit); ok {
				v, _ := r.value(name, metric)
				lines[candidate] = append(lines[candidate], plotter.XY{X: n, Y: v})
			}
		}
	}
	if len(lines) == 0 {
		return nil
	}
	p := newPlot(x, y)
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plainTicks{}
	p.Y.Min = 0
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		addLine(p, name, lines[name])
	}
	return p
}

// pings draws the quantiles of BenchmarkPing.
func pings(r *results) *plot.Plot {
	p := newPlot("", "milliseconds")
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plainTicks{}
	var names []string
	for i, route := range []string{"streamlocal", "relay"} {
		for j, where := range []string{"alone", "same", "separate"} { // as BenchmarkPing has them
			low, ok := r.value("Ping", route+"-"+where+"-p50-µs")
			high, known := r.value("Ping", route+"-"+where+"-p99-µs")
			if !ok || !known {
				return nil
			}
			at := float64(3*i + j)
			line, err := plotter.NewLine(plotter.XYs{{X: at, Y: low / 1000}, {X: at, Y: high / 1000}})
			if err != nil {
				return nil
			}
			line.Color, line.Width = colorOf(route), vg.Points(10)
			p.Add(line)
			if j == 0 {
				p.Legend.Add(route+", p50 to p99", line)
			}
			names = append(names, where)
		}
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(names))-0.5
	return p
}

func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil // the reader's
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Label.TextStyle.Color = ink, ink
		axis.Tick.Color, axis.Tick.Label.Color = ink, ink
	}
	p.Legend.TextStyle.Color = ink
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	return p
}

func addLine(p *plot.Plot, name string, points plotter.XYs) {
	slices.SortFunc(points, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
	line, err := plotter.NewLine(points)
	if err != nil {
		return // no points
	}
	line.Color, line.Width = colorOf(name), vg.Points(2)
	if name == "fork" || name == "local" || name == "raw" {
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	}
	p.Add(line)
	p.Legend.Add(name, line)
}

// plainTicks are those of a logarithmic axis, as plain numbers: 1, 2, 5, 10, ...
type plainTicks struct{}

func (plainTicks) Ticks(low, high float64) []plot.Tick {
	var all []plot.Tick
	for power := math.Pow(10, math.Floor(math.Log10(max(low, 1e-3)))); power <= high; power *= 10 {
		for _, n := range []float64{1, 2, 5} {
			if v := n * power; v >= low && v <= high {
				all = append(all, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 4, 64)})
			}
		}
	}
	return all
}

// style lets the reader's colours decide about the ink.
const style = `<style>svg{color:#1f2328}@media (prefers-color-scheme:dark){svg{color:#e6edf3}}</style>`

// save writes a plot as SVG.
func save(p *plot.Plot, name string) error {
	canvas := vgsvg.New(pictureWidth, pictureHeight)
	p.Draw(vgdraw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	text := strings.ReplaceAll(b.String(), fmt.Sprintf("#%02X%02X%02X", ink.R, ink.G, ink.B), "currentColor")
	if at := strings.Index(text, "<g"); at > 0 {
		text = text[:at] + style + "\n" + text[at:]
	}
	return os.WriteFile(name, []byte(text), 0o644)
}
