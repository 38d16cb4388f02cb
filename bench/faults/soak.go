package faults

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	soakVMs    = 10
	soakMaxAge = 20 * time.Second // connections are recycled all the time
)

// Soak is a long run of one manager: builds come and go on its VMs, with faults and with connections that are recycled.
type Soak struct {
	Seed     uint64
	WarmUp   time.Duration // at the begin, which is not fitted: caches fill, the heap and its pieces find their sizes
	Duration time.Duration // after that
	Storms   int           // instead of all this: so many cycles of a linger-storm
}

// soakSample is the manager's process at a moment when no build runs.
type soakSample struct {
	Seconds    float64 `json:"s"`
	Heap       float64 `json:"heap_bytes"` // live, after a collection
	RSS        float64 `json:"rss_bytes"`  // its own, not what is of files
	Threads    float64 `json:"threads"`    // Go keeps those that it once needed
	Goroutines float64 `json:"goroutines"`
	Files      float64 `json:"files"`
	Processes  float64 `json:"processes"` // of all VMs
	// Connections is the number of open connections. The other figures follow it up and down.
	Connections float64 `json:"connections"`
}

// SoakResult is how a soak went.
type SoakResult struct {
	Seconds  float64        `json:"seconds"`
	WarmUp   float64        `json:"warm_up_seconds"` // of them
	Cycles   int            `json:"cycles"`
	Builds   int            `json:"builds"`
	Lost     int            `json:"lost"`
	Faults   int            `json:"faults"`
	Samples  []soakSample   `json:"samples"`
	Fits     map[string]fit `json:"fits"` // by what was sampled
	Findings []Finding      `json:"findings"`
	// BackMS and BackLessLoginMS are the values in the cycles' results.
	BackMS          []float64 `json:"back_ms,omitempty"`
	BackLessLoginMS []float64 `json:"back_less_login_ms,omitempty"`
}

// StartSoak runs a soak in processes of its own and waits for it. They write progress to talk.
func StartSoak(ctx context.Context, s Soak, opts Options, talk io.Writer) (SoakResult, error) {
	r, err := start(ctx, assignment{Soak: &s, Opts: opts}, talk)
	return r.Soaked, err
}

// soakKinds returns the faults of a soak: the kinds without needs of their own.
func soakKinds(private bool) []Kind {
	return slices.DeleteFunc(slices.Clone(everyKind), func(k Kind) bool {
		s := kinds[k]
		return s.global || s.campaign || s.manager == program || s.tmpfs || s.slow || s.private && !private ||
			s.wrapper != "" ||
			slices.Contains([]Kind{"cancel-many", "recycle", "none"}, k)
	})
}

// soak is a Soak at work.
type soak struct {
	Soak
	*rig                        // the VMs, and what is found at the end
	current atomic.Pointer[rig] // the cycle
	result  SoakResult
}

// runSoak runs a soak in this process.
func runSoak(ctx context.Context, plan Soak, dir string, opts Options) (SoakResult, error) {
	runtime.MemProfileRate = 0 // what the rig itself would gather, as it can show stacks (runtime/pprof)
	kind := Kind("cut")
	if plan.Storms > 0 {
		kind = storm
		opts.Clean = cmp.Or(opts.Clean, kinds[storm].linger+stormMargin)
	}
	s := &soak{Soak: plan, rig: newRig(Plan{Seed: plan.Seed, Kind: kind, Route: "auto", VMs: soakVMs}, dir, opts,
		slog.New(slog.DiscardHandler))}
	s.current.Store(s.rig)
	if err := s.setUp(ctx); err != nil {
		return SoakResult{}, fmt.Errorf("set up: %w", err)
	}
	defer s.tearDown()
	// The plan of the rig as a whole has no builds: it says how many there may be at once.
	s.builds = make([]*build, soakBuilds)
	goroutines, files := runtime.NumGoroutine(), openFiles()
	provider, err := s.newProvider(soakMaxAge, s.current.Load)
	if err != nil {
		return SoakResult{}, err
	}
	for s.goesOn() && ctx.Err() == nil {
		cycle := s.cycle(s.result.Cycles)
		s.current.Store(cycle)
		if !cycle.drive(ctx, provider) {
			break
		}
		cycle.probe(ctx, provider)
		s.add(cycle)
	}
	ending := time.Now()
	s.probe(ctx, provider)
	s.closeProvider(provider)
	s.requireBack(goroutines, files)
	s.requireClean(ending)
	s.result.Findings = append(s.result.Findings, s.rig.result.Findings...)
	s.result.Seconds, s.result.WarmUp = time.Since(s.begin).Seconds(), plan.WarmUp.Seconds()
	s.result.fit()
	return s.result, nil
}

// stormMargin is how long after its linger a step runner may end by itself: it notices 30 s late that the link was
// lost.
const stormMargin = 45 * time.Second

func (s *soak) goesOn() bool {
	if s.Storms > 0 {
		return s.result.Cycles < s.Storms
	}
	return time.Since(s.begin) < s.WarmUp+s.Duration
}

// soakBuilds bounds the builds of a cycle.
const soakBuilds = 40

// cycle returns the n-th cycle: builds, and one kind of fault, on the soak's VMs.
func (s *soak) cycle(n int) *rig {
	r := newSource(s.Seed, n)
	all := soakKinds(s.opts.Private)
	if s.Storms > 0 {
		all = []Kind{storm}
	}
	plan := drawOf(r, s.Seed, n, choice{all[r.IntN(len(all))], s.plan.Route})
	for len(plan.Builds) < soakBuilds {
		plan.Builds = append(plan.Builds, drawBuild(r, len(plan.Builds), plan.Kind))
	}
	if s.Storms > 0 {
		plan.Faults = drawStorm(r, soakVMs, len(plan.Builds))
	}
	for i := range plan.Builds { // those of the cycle before may still be about to end on the VMs
		plan.Builds[i].ID += "-" + strconv.Itoa(n)
	}
	c := newRig(plan, s.dir, s.opts, s.log)
	c.who, c.vms, c.recycles = s.who, s.vms, true
	c.setBuilds()
	return c
}

// add adds up a cycle that has ended, and takes a sample.
func (s *soak) add(c *rig) {
	s.result.Cycles++
	s.result.Builds += len(c.builds)
	s.result.Lost += c.result.Lost
	s.result.Faults += c.result.Faults
	s.result.BackMS = append(s.result.BackMS, c.result.BackMS...)
	s.result.BackLessLoginMS = append(s.result.BackLessLoginMS, c.result.BackLessLoginMS...)
	for _, f := range c.result.Findings {
		f.Text = fmt.Sprintf("cycle %d (%s): %s", c.plan.Round, c.plan.Kind, f.Text)
		s.result.Findings = append(s.result.Findings, f)
		fmt.Fprintf(os.Stderr, "%s: build %s: %s\n", f.What, f.Build, f.Text)
	}
	for _, b := range c.builds {
		_ = os.Remove(b.ledger) // there is none of a script that never ran
	}
	sample := s.sample()
	s.result.Samples = append(s.result.Samples, sample)
	if s.result.Cycles%10 == 0 || s.Storms > 0 {
		fmt.Fprintf(os.Stderr,
			"%.0f s: %d builds, %d faults, heap %.1f MiB, RSS %.1f MiB, %.0f goroutines, %.0f files, %.0f processes\n",
			sample.Seconds, s.result.Builds, s.result.Faults, sample.Heap/(1<<20), sample.RSS/(1<<20),
			sample.Goroutines, sample.Files, sample.Processes)
	}
}

func (s *soak) sample() soakSample {
	debug.FreeOSMemory() // collects first
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	files := 0
	for _, n := range openFiles() {
		files += n
	}
	return soakSample{
		Seconds:    time.Since(s.begin).Seconds(),
		Heap:       float64(mem.HeapAlloc),
		RSS:        float64(status("RssAnon")) * 1024,
		Threads:    float64(status("Threads")),
		Goroutines: float64(runtime.NumGoroutine()),
		Files:      float64(files),
		Processes:  float64(len(s.alive())),

		Connections: float64(s.connections()),
	}
}

// connections returns how many connections to VMs the manager has.
func (s *soak) connections() (n int) {
	for _, m := range s.vms {
		n += connectionsTo(m.dialed(), os.Getpid())
	}
	return n
}

// status returns a number of /proc/self/status (proc(5)), or 0 if there is no such field.
func status(name string) int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}

// series are the sampled quantities, by name.
var series = map[string]func(soakSample) float64{
	"heap":       func(s soakSample) float64 { return s.Heap },
	"rss":        func(s soakSample) float64 { return s.RSS },
	"threads":    func(s soakSample) float64 { return s.Threads },
	"goroutines": func(s soakSample) float64 { return s.Goroutines },
	"files":      func(s soakSample) float64 { return s.Files },
	"processes":  func(s soakSample) float64 { return s.Processes },
}

// fit fits all series after the warm-up, and the share of each open connection beside it.
func (r *SoakResult) fit() {
	r.Fits = map[string]fit{}
	for name := range maps.Keys(series) {
		var x, k, y []float64
		for _, s := range r.Samples {
			if s.Seconds >= r.WarmUp {
				x, k, y = append(x, s.Seconds/3600), append(k, s.Connections), append(y, series[name](s))
			}
		}
		r.Fits[name] = fitBeside(x, k, y)
	}
}

// Flat reports whether nothing grows.
func (r *SoakResult) Flat() bool {
	for _, f := range r.Fits {
		if !f.Flat {
			return false
		}
	}
	return len(r.Fits) > 0
}
