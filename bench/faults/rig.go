package faults

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
)

// Times of a round. Those of the product are short, so that a round is.
const (
	keepaliveInterval = time.Second
	keepaliveTimeout  = 2 * time.Second
	stopTimeout       = 6 * time.Second
	jobGrace          = time.Second

	// harmlessPause is the longest that a peer is silent without harm.
	harmlessPause = 1500 * time.Millisecond

	buildBound     = 60 * time.Second  // from a build's begin to its end
	slowBuildBound = 150 * time.Second // where nothing but silence tells of the fault
	cleanBound     = 40 * time.Second  // until the VMs are clean
	lateCleanBound = 75 * time.Second  // where they have to find out that the manager is gone
	closeMargin    = 5 * time.Second   // of Close, beyond its own bound, on a machine that is busy
)

// Options say where rounds run.
type Options struct {
	Program string // the stepmux program, the manager
	VMsEnd  string // the program on the VMs: stepmux-vm
	Private bool   // rounds have namespaces of their own
	// Clean is how long the VMs may take until they are clean. If zero, it depends on the kind of fault.
	Clean time.Duration
}

// Result is how a round went.
type Result struct {
	Round  int       `json:"round"`
	Kind   Kind      `json:"kind"`
	Route  string    `json:"route"`
	Faults int       `json:"faults"` // that were done
	Missed int       `json:"missed"` // that met nothing to be harmed
	Builds int       `json:"builds"`
	Lost   int       `json:"lost"` // builds, as failures of the system
	EndMS  []float64 `json:"end_ms,omitempty"`
	// BackMS is for each build how long after its VM's network was back its link was, and BackLessLoginMS the same
	// without the key exchange and the login of that connection.
	BackMS          []float64 `json:"back_ms,omitempty"`
	BackLessLoginMS []float64 `json:"back_less_login_ms,omitempty"`
	CleanMS         float64   `json:"clean_ms"` // from the last build's end to clean VMs
	TookMS          float64   `json:"took_ms"`
	Findings        []Finding `json:"findings,omitempty"`
}

// rig is a round at work.
type rig struct {
	plan   Plan
	opts   Options
	spec   *kindSpec
	dir    string // of the round
	who    account
	vms    []*machine
	builds []*build
	log    *slog.Logger
	begin  time.Time
	over   chan struct{} // closed when all builds have ended

	recycles bool            // connections are replaced under the builds
	manage   *managerProcess // in a round of program; set before its first fault
	provider *fleet          // in a round of library; set before its first fault

	starving sync.Mutex // held while a limit is taken down, so that the first one to do so is the last to undo it

	mu     sync.Mutex // guards the following
	result Result
	heals  []func()             // undo faults, last first
	harmed map[string]time.Time // what may be lost, since when: VMs, and "build " and a build
}

// build is one build of a round.
type build struct {
	buildPlan
	ledger string
	sink   *sink

	mu       sync.Mutex // guards the following
	reached  map[phase]chan struct{}
	vm       string
	canceled bool
	cancel   context.CancelFunc
	ended    time.Time
}

// runRound runs a round in this process and returns how it went. An error means that the round says nothing.
func runRound(ctx context.Context, plan Plan, dir string, opts Options) (Result, error) {
	r := newRig(plan, dir, opts, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if r.spec == nil {
		return Result{}, fmt.Errorf("unknown kind of fault %q", plan.Kind)
	}
	if err := r.setUp(ctx); err != nil {
		return Result{}, fmt.Errorf("set up: %w", err)
	}
	defer r.tearDown()
	var err error
	if r.spec.manager == program {
		err = r.runProgram(ctx)
	} else {
		err = r.runLibrary(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.TookMS = millis(time.Since(r.begin))
	return r.result, err
}

func newRig(plan Plan, dir string, opts Options, log *slog.Logger) *rig {
	return &rig{
		plan: plan, opts: opts, spec: kinds[plan.Kind], dir: dir, log: log, begin: time.Now(),
		over: make(chan struct{}), recycles: plan.Kind == "recycle", harmed: map[string]time.Time{},
		result: Result{Round: plan.Round, Kind: plan.Kind, Route: plan.Route, Builds: len(plan.Builds)},
	}
}

func (r *rig) setUp(ctx context.Context) error {
	self, err := user.Current()
	if err != nil {
		return err
	}
	r.who = account{user: self.Username, file: filepath.Join(r.dir, "id")}
	if r.who.key, err = newKey(r.who.file); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where sshd locks up its unprivileged part
			return err
		}
	}
	for i := range r.plan.VMs {
		m, err := startMachine(ctx, r.dir, i, r.opts.Private, r.spec, &r.who)
		if err != nil {
			return err
		}
		r.vms = append(r.vms, m)
	}
	r.setBuilds()
	return nil
}

// setBuilds makes the builds of the plan.
func (r *rig) setBuilds() {
	for _, p := range r.plan.Builds {
		b := &build{
			buildPlan: p, ledger: filepath.Join(r.dir, "ledger-"+p.ID), sink: newSink(p.ID),
			reached: map[phase]chan struct{}{},
		}
		for _, at := range phases {
			if b.reached[at] == nil {
				b.reached[at] = make(chan struct{})
			}
		}
		r.builds = append(r.builds, b)
	}
}

func (r *rig) tearDown() {
	for _, m := range r.vms {
		if m.proxy != nil {
			m.proxy.Close()
		}
		m.killListener()
		signalAll(m.owned(processes()), 9)
	}
}

// reach notes that a build is in a phase.
func (b *build) reach(at phase) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.reached[at]; !pause.Done(c) {
		close(c)
	}
}

// watchLedgers notes the phases that only the scripts know, until all builds have ended.
func (r *rig) watchLedgers() {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, b := range r.builds {
			t := readLedger(b.ledger)
			if t.Started {
				b.reach(atJob)
			}
			if t.Ending {
				b.reach(atEnd)
			}
		}
		select {
		case <-r.over:
			return
		case <-tick.C:
		}
	}
}

// watchConnections holds the manager to one connection to each VM, until all builds have ended. While one is replaced
// that still has builds there are two.
func (r *rig) watchConnections() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	most := 1
	if r.recycles {
		most = len(r.builds) + 1
	}
	before := make([]int, len(r.vms))
	pid := os.Getpid()
	if r.manage != nil {
		pid = r.manage.cmd.Process.Pid
	}
	for {
		for i, m := range r.vms {
			n := connectionsTo(m.dialed(), pid)
			if n > most && before[i] > most {
				r.find(Finding{What: Connections, Text: fmt.Sprintf("%d to %s", n, m.id)})
			}
			before[i] = n
		}
		select {
		case <-r.over:
			return
		case <-tick.C:
		}
	}
}

// inject does a fault when its moment has come, or not at all if all builds end before.
func (r *rig) inject(f injection) {
	b := r.builds[f.Build]
	b.mu.Lock()
	moment := b.reached[f.Phase]
	b.mu.Unlock()
	select {
	case <-moment:
	case <-r.over:
		r.missed()
		return
	}
	timer := time.NewTimer(f.After)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.over:
	}
	r.log.Debug("fault", "kind", cmp.Or(f.Kind, r.plan.Kind), "build", b.ID, "phase", f.Phase, "size", f.Size)
	kinds[cmp.Or(f.Kind, r.plan.Kind)].inject(r, f)
}

// done counts a fault that met something.
func (r *rig) done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Faults++
}

func (r *rig) missed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Missed++
}

// harm notes, before it happens, that a VM's builds may be lost from now on.
func (r *rig) harm(m *machine) { r.harmBuild(m, "") }

// harmBuild is harm for one build, all builds of the VM if it is not known which.
func (r *rig) harmBuild(m *machine, id string) {
	if r.spec.linger > 0 {
		return // nothing may be lost
	}
	what := "build " + id
	if id == "" {
		what = m.id
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.harmed[what]; !known {
		r.harmed[what] = time.Now()
	}
}

// heal has something undone once all builds have ended.
func (r *rig) heal(undo func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heals = append(r.heals, undo)
}

func (r *rig) healAll() {
	r.mu.Lock()
	undo := r.heals
	r.heals = nil
	r.mu.Unlock()
	for _, f := range slices.Backward(undo) {
		f()
	}
}

// find notes that something is wrong; the same twice is once.
func (r *rig) find(all ...Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range all {
		if !slices.ContainsFunc(r.result.Findings, func(g Finding) bool { return g.What == f.What && g.Build == f.Build }) {
			r.result.Findings = append(r.result.Findings, f)
		}
	}
}

// vmOf returns the VM of a build, or any VM if the build is not on one yet.
func (r *rig) vmOf(f injection) *machine {
	if f.VM > 0 {
		return r.vms[f.VM-1]
	}
	b := r.builds[f.Build]
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range r.vms {
		if m.id == b.vm {
			return m
		}
	}
	return r.vms[f.Build%len(r.vms)]
}

// build returns the build with the ID, or nil: of a soak's cycle before, of a probe, or not known.
func (r *rig) build(id string) *build {
	for _, b := range r.builds {
		if b.ID == id {
			return b
		}
	}
	return nil
}

// linkBack notes that the link of a build is back.
func (r *rig) linkBack(id string, away time.Duration) {
	now := time.Now()
	b := r.build(id)
	if b == nil {
		return
	}
	b.mu.Lock()
	vm := b.vm
	b.mu.Unlock()
	for _, m := range r.vms {
		if m.id != vm {
			continue
		}
		m.mu.Lock()
		plugged, login := m.plugged, m.login
		m.mu.Unlock()
		if plugged.IsZero() || now.Add(-away).After(plugged) { // it was away for another reason
			continue
		}
		took := now.Sub(plugged)
		r.mu.Lock()
		r.result.BackMS = append(r.result.BackMS, millis(took))
		r.result.BackLessLoginMS = append(r.result.BackLessLoginMS, millis(took-login))
		r.mu.Unlock()
	}
}

// end notes a build's end and judges it.
func (r *rig) end(b *build, said verdict) {
	now := time.Now()
	b.mu.Lock()
	b.ended = now
	vm, wasCanceled := b.vm, b.canceled
	b.mu.Unlock()
	r.mu.Lock()
	since, lossy := r.lossLocked(b.ID, vm)
	if said.Reason == bySystem {
		r.result.Lost++
		if lossy {
			r.result.EndMS = append(r.result.EndMS, millis(now.Sub(since)))
		}
	}
	r.mu.Unlock()
	r.log.Debug("end", "build", b.ID, "vm", vm, "verdict", said, "truth", readLedger(b.ledger), "log", b.sink.state())
	r.find(judge(&b.buildPlan, said, readLedger(b.ledger), b.sink.state(),
		circumstances{lossy: lossy, canceled: wasCanceled, inherited: r.spec.inherited})...)
}

// lossLocked reports whether a build may be lost, and since when.
func (r *rig) lossLocked(id, vm string) (since time.Time, lossy bool) {
	if at, ok := r.harmed["build "+id]; ok {
		return at, true
	}
	if at, ok := r.harmed[vm]; ok {
		return at, true
	}
	if vm == "" { // it may have tried any
		for _, at := range r.harmed {
			return at, true
		}
	}
	return time.Time{}, false
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
