package faults

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Plan is everything that is decided about a round before it begins. It follows from the seed and the number.
type Plan struct {
	Seed   uint64
	Round  int
	Kind   Kind
	Route  string
	VMs    int
	Builds []buildPlan
	Faults []injection
}

// buildPlan is one build.
type buildPlan struct {
	ID       string
	After    time.Duration // after the round's begin, it does
	Form     string        // how it is run: script, steps or shell
	Lines    int           // of its output
	Bursts   int           // in so many pieces, with pauses between
	Pause    time.Duration
	Stderr   bool // the output goes there
	Children bool // it leaves processes in the background, in its session and in one of their own
	Deaf     bool // it ignores SIGTERM
	Code     int  // its exit code
}

// injection is one fault: it happens a while after a build has reached a phase.
type injection struct {
	Build int // index
	Phase phase
	After time.Duration
	Size  float64 // 0 to 1: how large or long
	Kind  Kind    // if not the round's
	VM    int     // with 1 added; 0: that of the build
}

// phase is a point in a build's life.
type phase string

const (
	atConnect phase = "connect" // it is about to get its connection
	atReady   phase = "ready"   // its step runner listens
	atJob     phase = "job"     // its script runs
	atEnd     phase = "end"     // its script is about to end
	atClose   phase = "close"   // it is being cleaned up
)

var phases = []phase{atConnect, atReady, atJob, atJob, atJob, atEnd, atClose}

// exitCodes are the exit codes of scripts; most succeed.
var exitCodes = []int{0, 0, 0, 0, 0, 0, 1, 2, 3, 42, 100, 124, 130, 137, 143, 255}

// Filter selects rounds by kind and route. An empty list means all.
type Filter struct {
	Kinds  []Kind
	Routes []string
	// Shared leaves out rounds that need namespaces of their own.
	Shared bool
}

// Check returns an error if the filter names unknown kinds or routes, or fits no round.
func (f Filter) Check() error {
	for _, k := range f.Kinds {
		if kinds[k] == nil {
			return fmt.Errorf("unknown kind of fault %q: there are %v", k, everyKind)
		}
	}
	for _, route := range f.Routes {
		if !slices.Contains(Routes, route) {
			return fmt.Errorf("unknown route %q: there are %v", route, Routes)
		}
	}
	if k := f.global(); k != "" && len(f.Kinds) > 1 {
		return fmt.Errorf("%q happens to the whole machine: ask for nothing else with it", k)
	}
	for _, c := range f.choices() {
		if f.wants(c) {
			return nil
		}
	}
	return errors.New("no kind of fault that can be had here harms such a route")
}

// global returns the kind that is asked for which happens to the whole machine, or nothing.
func (f Filter) global() Kind {
	for _, k := range f.Kinds {
		if kinds[k].global {
			return k
		}
	}
	return ""
}

// choices are the pairs of kind and route that rounds are drawn from.
func (f Filter) choices() []choice {
	if k := f.global(); k != "" {
		return choicesOf([]Kind{k})
	}
	return usualChoices
}

// Journal returns the name of the file that keeps the rounds of a seed.
func (f Filter) Journal(seed uint64) string {
	if k := f.global(); k != "" {
		return fmt.Sprintf("seed-%d-%s.jsonl", seed, k)
	}
	return fmt.Sprintf("seed-%d.jsonl", seed)
}

// Wants reports whether a round is wanted.
func (f Filter) Wants(p Plan) bool { return f.wants(choice{p.Kind, p.Route}) }

func (f Filter) wants(c choice) bool {
	return (len(f.Kinds) == 0 || slices.Contains(f.Kinds, c.kind)) &&
		(len(f.Routes) == 0 || slices.Contains(f.Routes, c.route)) &&
		(!f.Shared || !kinds[c.kind].private)
}

// on returns the routes of a kind.
func (k *kindSpec) on() []string {
	if k.routes == nil {
		return Routes
	}
	return k.routes
}

// choice is a kind on a route.
type choice struct {
	kind  Kind
	route string
}

// usualChoices are all that harm only a round.
var usualChoices = choicesOf(slices.DeleteFunc(slices.Clone(everyKind), func(k Kind) bool {
	return kinds[k].global || kinds[k].campaign
}))

// choicesOf returns the kinds on their routes, as often as each is to be drawn.
func choicesOf(from []Kind) []choice {
	var all []choice
	for _, kind := range from {
		spec := kinds[kind]
		routes := spec.on()
		for _, route := range routes {
			for range cmp.Or(spec.weight, usualWeight) * len(Routes) / len(routes) {
				all = append(all, choice{kind, route})
			}
		}
	}
	return all
}

const usualWeight = 4

// newSource returns the numbers that a round is drawn from.
func newSource(seed uint64, round int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(round))) }

// Draw returns the plan of a round.
func (f Filter) Draw(seed uint64, round int) Plan {
	r, choices := newSource(seed, round), f.choices()
	c := choices[r.IntN(len(choices))]
	return drawOf(r, seed, round, c)
}

// DrawShort returns a round of each kind that the filter wants and that takes no long time, each kind on another of
// its routes, with at most so many builds.
func DrawShort(seed uint64, f Filter, builds int) []Plan {
	missing := map[choice]bool{}
	for i, kind := range everyKind {
		spec := kinds[kind]
		c := choice{kind, spec.on()[i%len(spec.on())]}
		if f.wants(c) && spec.global == (f.global() != "") && !spec.slow && !spec.campaign &&
			kind != "cancel-many" {
			missing[c] = true
		}
	}
	var plans []Plan
	for i := 0; len(missing) > 0; i++ {
		p := f.Draw(seed, i)
		if c := (choice{p.Kind, p.Route}); missing[c] && len(p.Builds) <= builds {
			delete(missing, c)
			plans = append(plans, p)
		}
	}
	return plans
}

// drawStorm draws the faults of a storm: the network of each VM is pulled once, sshd and the relay of one are killed,
// and now and then the manager is stopped.
func drawStorm(r *rand.Rand, vms, builds int) []injection {
	var all []injection
	for i := range vms {
		f := drawFault(r, builds, storm)
		f.VM, f.Size = i+1, f.Size*f.Size // most are short
		all = append(all, f)
	}
	others := []Kind{"linger-sshd", "linger-relay"}
	if r.IntN(5) == 0 {
		others = append(others, "linger-stop")
	}
	for _, kind := range others {
		f := drawFault(r, builds, storm)
		f.Kind, f.Size = kind, f.Size*f.Size
		all = append(all, f)
	}
	return all
}

func drawOf(r *rand.Rand, seed uint64, round int, c choice) Plan {
	p := Plan{Seed: seed, Round: round, Kind: c.kind, Route: c.route, VMs: 1 + r.IntN(2)}
	builds := 1 + r.IntN(6)
	if r.IntN(12) == 0 {
		builds = 8 + r.IntN(23)
	}
	faults := 1 + r.IntN(3)
	switch c.kind {
	case "cancel-many":
		builds, faults = 200, 1
	case "kill-manager", "end-manager", "hang-serve", "hang-relay", "hang-ends", "fds-manager", "none", "reorder",
		"linger-kill", "linger-stop", "linger-unplug",
		"recycle":
		faults = 1
	}
	for i := range builds {
		p.Builds = append(p.Builds, drawBuild(r, i, c.kind))
	}
	for range faults {
		p.Faults = append(p.Faults, drawFault(r, builds, c.kind))
	}
	return p
}

func drawFault(r *rand.Rand, builds int, kind Kind) injection {
	f := injection{
		Build: r.IntN(builds),
		Phase: phases[r.IntN(len(phases))],
		After: time.Duration(r.ExpFloat64() * float64(20*time.Millisecond)),
		Size:  r.Float64(),
	}
	switch kind {
	case "cancel-many": // most never get further where sessions are few
		f.Phase = atConnect
	case "fds-manager": // later it has all the files it needs
		f.Phase, f.Size = atConnect, f.Size/4
	}
	if f.Phase == atConnect {
		// It takes about so long to come to a step runner.
		f.After = time.Duration(f.Size * float64(400*time.Millisecond))
	}
	return f
}

func drawBuild(r *rand.Rand, i int, kind Kind) buildPlan {
	b := buildPlan{
		ID:       "b" + string(rune('a'+i/26)) + string(rune('a'+i%26)),
		After:    time.Duration(r.IntN(600)) * time.Millisecond,
		Form:     []string{"script", "script", "steps", "shell"}[r.IntN(4)],
		Lines:    1 + r.IntN(200),
		Bursts:   1 + r.IntN(4),
		Pause:    time.Duration(r.IntN(250)) * time.Millisecond,
		Stderr:   r.IntN(4) == 0,
		Children: r.IntN(2) == 0,
		Deaf:     r.IntN(8) == 0,
		Code:     exitCodes[r.IntN(len(exitCodes))],
	}
	if r.IntN(8) == 0 {
		b.Lines = 10_000 + r.IntN(40_000) // up to 3 MiB
	}
	switch {
	case kind == storm: // it takes longer than most cuts
		b.Pause *= 20
	case kind == "cancel-many":
		b.Lines, b.Bursts, b.Pause, b.After, b.Form = 1, 2, time.Minute, 0, "script"
	case kinds[kind].manager == program:
		b.Form, b.After, b.Stderr = "steps", 0, false // what a file of steps can say
	}
	return b
}
