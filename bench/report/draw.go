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
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	vgtext "gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// picture is a plot that was drawn.
type picture struct {
	file, title, says string
	bench             string // that its figures come from
}

// figurePlot is a plot with its legend, which stands beside it, where it hides nothing.
type figurePlot struct {
	*plot.Plot
	legend plot.Legend
	found  bool // something to draw
}

const (
	pictureWidth  = 20 * vg.Centimeter
	pictureHeight = 10 * vg.Centimeter
	// legendGap is between the plot and its legend.
	legendGap = 4 * vg.Millimeter
	// fontWidth is the ratio by which a reader's font may be wider than the font that is measured here.
	fontWidth = 1.25
)

// ink is the colour of the plots' lines and text. The file has currentColor instead, to suit the reader's background.
var ink = color.NRGBA{0x01, 0x02, 0x03, 0xff}

// colors tell candidates apart, on white and on black alike.
var colors = map[string]color.Color{
	"auto":           color.NRGBA{0x0f, 0xb5, 0xae, 0xff},
	"relay":          color.NRGBA{0x1f, 0x9e, 0x57, 0xff},
	"streamlocal":    color.NRGBA{0x2f, 0x81, 0xf7, 0xff},
	"session":        color.NRGBA{0x9a, 0x5c, 0xe6, 0xff},
	"pool":           color.NRGBA{0x0f, 0xb5, 0xae, 0xff},
	"fresh-dial":     color.NRGBA{0xd9, 0x48, 0x3b, 0xff},
	"control-master": color.NRGBA{0xe0, 0x8a, 0x1e, 0xff},
	"ssh":            color.NRGBA{0xb0, 0x6a, 0x4a, 0xff},
	"io.Copy":        color.NRGBA{0xd0, 0x5a, 0xa8, 0xff},
	"raw":            color.NRGBA{0x7d, 0x85, 0x90, 0xff},
	"unix":           color.NRGBA{0xa0, 0x94, 0x50, 0xff},
	"fork":           color.NRGBA{0xa0, 0x94, 0x50, 0xff},
	"local":          color.NRGBA{0xa0, 0x94, 0x50, 0xff},
	"running":        color.NRGBA{0x9a, 0x5c, 0xe6, 0xff},
	"relay-running":  color.NRGBA{0x2f, 0x81, 0xf7, 0xff},
}

func colorOf(name string) color.Color {
	if c, ok := colors[name]; ok {
		return c
	}
	return color.NRGBA{0x3f, 0xb0, 0xac, 0xff}
}

// drawing is a picture and how it is drawn.
type drawing struct {
	picture
	plot func(r *results, samples []sample) *figurePlot
}

// drawings are all of them. The first is the README's.
var drawings = []drawing{
	{
		picture{
			"build-start.svg", "The start of a build",
			"From the request to the step runner's first answer, on a VM that is known: " +
				"the share of builds that took at most so long. Left is better.",
			"SpawnLatency/first-answer/vm=warm/CapacityPerInstance=1$",
		},
		func(r *results, samples []sample) *figurePlot { return distribution(r, samples, warm) },
	},
	{
		picture{
			"first-build.svg", "The first build on a VM",
			"The same on a VM without a connection. Left is better.", "SpawnLatency/first-answer/vm=cold",
		},
		func(r *results, samples []sample) *figurePlot { return distribution(r, samples, cold) },
	},
	{
		picture{
			"start.svg", "The start of a process",
			"To its first byte: the share of starts that took at most so long. Left is better.",
			"SpawnLatency/first-byte/CapacityPerInstance=1$",
		},
		func(r *results, samples []sample) *figurePlot { return distribution(r, samples, firstByte) },
	},
	{
		picture{
			"throughput-down.svg", "Throughput of many bridges, from the VM",
			"All bridges together, by how many builds have one. Higher is better.", "ProxyThroughput/down",
		},
		func(r *results, _ []sample) *figurePlot {
			return series(r, "ProxyThroughput/down/CapacityPerInstance=", "-MB/s", "builds at once", "MB/s", setLogarithmic)
		},
	},
	{
		picture{
			"throughput-up.svg", "Throughput of many bridges, to the VM",
			"All bridges together, by how many builds have one. Higher is better.", "ProxyThroughput/up",
		},
		func(r *results, _ []sample) *figurePlot {
			return series(r, "ProxyThroughput/up/CapacityPerInstance=", "-MB/s", "builds at once", "MB/s", setLogarithmic)
		},
	},
	{
		picture{
			"follow.svg", "Following a big log",
			"A GiB of a job's output by gRPC, over the step runner's socket itself and through SSH. Higher is better.",
			"ProxyThroughput/FollowIO",
		},
		func(r *results, _ []sample) *figurePlot { return bars(r, followIO, "-MB/s", "MB/s") },
	},
	{
		picture{
			"neighbour.svg", "A ping beside a download",
			"A small round trip, p50 to p99: alone, beside a download on the same connection, and beside one on another " +
				"connection, which shows the machine's own share. Lower is better.",
			"Neighbour/flood/CapacityPerInstance=2",
		},
		func(r *results, _ []sample) *figurePlot { return pings(r) },
	},
	{
		picture{
			"neighbours.svg", "A ping beside many downloads",
			"The median of a small round trip, by the number of builds on the connection; all but one " +
				"download at full speed. Lower is better.", "Neighbour/flood",
		},
		func(r *results, _ []sample) *figurePlot {
			return series(r, "Neighbour/flood/CapacityPerInstance=", "-same-p50-µs", "builds at once", "milliseconds",
				setLogarithmic)
		},
	},
	{
		picture{
			"memory.svg", "The manager's memory for each build",
			"Heap for each build that is there, by their number. Flat is linear; lower is better.",
			"Density/CapacityPerInstance",
		},
		func(r *results, _ []sample) *figurePlot {
			return series(r, "Density/CapacityPerInstance=", "-heap-KiB/build", "builds at once", "KiB for each", setFromZero)
		},
	},
	{
		picture{
			"vm-memory.svg", "The VM's memory for each build",
			"Proportional set size that the builds add, for each build, by their number. Lower is better.",
			"Density/CapacityPerInstance",
		},
		func(r *results, _ []sample) *figurePlot {
			return series(r, "Density/CapacityPerInstance=", "-vm-KiB/build", "builds at once", "KiB for each", setFromZero)
		},
	},
	{
		picture{
			"time.svg", "Time for each build",
			"Builds that start one after the other and stay, by their number. Flat is linear; lower is better.",
			"Density/CapacityPerInstance",
		},
		func(r *results, _ []sample) *figurePlot {
			return series(r, "Density/CapacityPerInstance=", "-time-ms/build", "builds at once", "milliseconds for each",
				setFromZero)
		},
	},
	{
		picture{
			"distance.svg", "The start of a build over a distance",
			"To the step runner's first answer, by the round trip time. Lower is better.", "Distance/first-answer",
		},
		func(r *results, _ []sample) *figurePlot { return distances(r, "Distance/first-answer/rtt=") },
	},
}

// draw draws all pictures that the run has figures for.
func draw(r *results, samples []sample, dir string) ([]picture, error) {
	var drawn []picture
	for _, d := range drawings {
		p := d.plot(r, samples)
		if !p.found {
			continue
		}
		if err := save(p, filepath.Join(dir, d.file)); err != nil {
			return nil, fmt.Errorf("draw %s: %w", d.file, err)
		}
		drawn = append(drawn, d.picture)
	}
	return drawn, nil
}

// distribution draws how the latencies of a benchmark's candidates are distributed.
func distribution(r *results, samples []sample, bench string) *figurePlot {
	const few = 3
	p := newPlot("milliseconds", "share")
	setLogarithmic(&p.X)
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, 1, shareTicks
	found := make(map[string][]float64) // of all runs of the benchmark
	for _, s := range samples {
		if _, ok := r.value(bench, s.Name+"-p50-µs"); ok && s.Bench == bench {
			found[s.Name] = append(found[s.Name], s.Values...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all := slices.Sorted(slices.Values(found[name]))
		if len(all) < few {
			continue
		}
		points := make(plotter.XYs, len(all))
		for i, v := range all {
			points[i] = plotter.XY{X: v / 1000, Y: float64(i+1) / float64(len(all))}
		}
		p.line(name, points)
	}
	return p
}

// shareTicks are the ticks of an axis from 0 to 1.
var shareTicks = plot.ConstantTicks{
	{Value: 0, Label: "0"},
	{Value: 0.25},
	{Value: 0.5, Label: "0.5"},
	{Value: 0.75},
	{Value: 1, Label: "1"},
}

// series draws a metric of each candidate over the number at the end of the benchmarks' names. upwards sets the axis of
// it.
func series(r *results, prefix, unit, x, y string, upwards func(axis *plot.Axis)) *figurePlot {
	p := newPlot(x, y)
	setLogarithmic(&p.X)
	upwards(&p.Y)
	scale := 1.0
	if strings.HasSuffix(unit, "µs") {
		scale = 1.0 / 1000 // drawn in milliseconds
	}
	p.lines(r, unit, scale, func(name string) (float64, bool) {
		n, err := strconv.ParseFloat(strings.TrimPrefix(name, prefix), 64)
		return n, err == nil && strings.HasPrefix(name, prefix)
	})
	return p
}

// distances draws the median of each candidate over the round trip time that the benchmarks' names end with.
func distances(r *results, prefix string) *figurePlot {
	p := newPlot("round trip, milliseconds", "milliseconds")
	p.Y.Min = 0
	p.lines(r, "-p50-µs", 1.0/1000, func(name string) (float64, bool) {
		rtt, err := time.ParseDuration(strings.TrimPrefix(name, prefix))
		return float64(rtt.Milliseconds()), err == nil && strings.HasPrefix(name, prefix)
	})
	return p
}

// lines draws a metric of each candidate, times scale, over the value of at for the benchmark's name.
func (p *figurePlot) lines(r *results, unit string, scale float64, at func(bench string) (float64, bool)) {
	found := make(map[string]plotter.XYs)
	for _, name := range r.names {
		x, ok := at(name)
		if !ok {
			continue
		}
		for metric := range r.values[name] {
			if candidate, ok := strings.CutSuffix(metric, unit); ok {
				v, _ := r.value(name, metric)
				found[candidate] = append(found[candidate], plotter.XY{X: x, Y: v * scale})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		p.line(name, found[name])
	}
}

// bars draws a metric of each candidate of a benchmark, the largest first.
func bars(r *results, bench, unit, y string) *figurePlot {
	p := newPlot("", y)
	values := make(map[string]float64)
	for metric := range r.values[bench] {
		if candidate, ok := strings.CutSuffix(metric, unit); ok {
			values[candidate], _ = r.value(bench, metric)
		}
	}
	list := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	for i, name := range list {
		p.bar(name, float64(i), 0, values[name], vg.Points(24))
	}
	p.places(list)
	p.Y.Min = 0
	return p
}

// pings draws the quantiles of a ping alone and beside downloads.
func pings(r *results) *figurePlot {
	p := newPlot("", "milliseconds")
	setLogarithmic(&p.Y)
	var places []string
	// from the socket itself outwards
	for _, way := range []string{"unix", "raw", "streamlocal", "relay", "session", "io.Copy", "control-master"} {
		for i, where := range []string{"alone", "same", "separate"} { // as the benchmark has them
			low, ok := r.value(flooded, way+"-"+where+"-p50-µs")
			high, known := r.value(flooded, way+"-"+where+"-p99-µs")
			if !ok || !known {
				continue
			}
			bar := p.bar(way, float64(len(places)), low/1000, high/1000, vg.Points(8))
			if i == 0 && bar != nil {
				p.legend.Add(way, bar)
			}
			places = append(places, where)
		}
	}
	p.places(places)
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = math.Pi/4, vgtext.XRight, vgtext.YCenter
	return p
}

// bar draws a bar at a place and returns it, or nil if its value is missing.
func (p *figurePlot) bar(name string, at, low, high float64, width vg.Length) *plotter.Line {
	points := plotter.XYs{{X: at, Y: low}, {X: at, Y: high}}
	if !p.has(points[0]) || !p.has(points[1]) {
		return nil
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil // it is not a number
	}
	line.Color, line.Width = colorOf(name), width
	p.Add(line)
	p.found = true
	return line
}

// places names the places of bars.
func (p *figurePlot) places(names []string) {
	if len(names) == 0 {
		return
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(names))-0.5
}

func newPlot(x, y string) *figurePlot {
	p := &figurePlot{Plot: plot.New(), legend: plot.NewLegend()}
	p.BackgroundColor = nil // the reader's
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Label.TextStyle.Color = ink, ink
		axis.Tick.Color, axis.Tick.Label.Color = ink, ink
	}
	p.legend.TextStyle.Color = ink
	p.legend.Top, p.legend.Left = true, true
	p.legend.Padding = vg.Points(2)
	return p
}

// line draws a line, with dots where it has few points.
func (p *figurePlot) line(name string, points plotter.XYs) {
	const few = 12
	points = slices.DeleteFunc(points, func(point plotter.XY) bool { return !p.has(point) })
	slices.SortFunc(points, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil || len(points) == 0 {
		return // nothing that can be drawn
	}
	line.Color, line.Width = colorOf(name), vg.Points(2)
	dots.Color, dots.Shape, dots.Radius = line.Color, vgdraw.CircleGlyph{}, vg.Points(2.5)
	if isFloor(name) {
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	}
	p.Add(line)
	if len(points) <= few {
		p.Add(dots)
	}
	p.legend.Add(name, line)
	p.found = true
}

// isFloor reports whether a candidate works without SSH or without stepmux.
func isFloor(name string) bool {
	return slices.Contains([]string{"fork", "local", "raw", "unix"}, name)
}

func setFromZero(axis *plot.Axis) { axis.Min = 0 }

func setLogarithmic(axis *plot.Axis) { axis.Scale, axis.Tick.Marker = plot.LogScale{}, plainTicks{} }

func isLogarithmic(axis plot.Axis) bool {
	_, ok := axis.Scale.(plot.LogScale)
	return ok
}

// has reports whether a point has a place: a logarithmic axis has only positive values.
func (p *figurePlot) has(point plotter.XY) bool {
	return (point.X > 0 || !isLogarithmic(p.X)) && (point.Y > 0 || !isLogarithmic(p.Y))
}

// widen gives logarithmic axes on which there is one value only an extent. (The library would take one off, and then
// there is no logarithm.)
func (p *figurePlot) widen() {
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		if isLogarithmic(*axis) && axis.Min == axis.Max {
			axis.Min, axis.Max = axis.Min/2, axis.Max*2
		}
	}
}

// plainTicks are the ticks of a logarithmic axis, as plain numbers: 1, 2, 5, 10, ...
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

// save writes a plot as SVG, its legend at the right.
func save(p *figurePlot, name string) error {
	canvas := vgsvg.New(pictureWidth, pictureHeight)
	whole := vgdraw.New(canvas)
	width := fontWidth * p.legend.Rectangle(whole).Size().X
	p.widen()
	p.Draw(vgdraw.Crop(whole, 0, -width-legendGap, 0, 0))
	p.legend.Draw(vgdraw.Crop(whole, whole.Size().X-width, 0, 0, 0))
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
