package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// fleet is the product's end of a round, and the VMs it has.
type fleet struct {
	*instance.Provider
	group *instance.Group
}

// runLibrary runs the round's builds by the packages, in this process.
func (r *rig) runLibrary(ctx context.Context) error {
	goroutines, files := runtime.NumGoroutine(), openFiles()
	maxAge := time.Duration(0)
	if r.plan.Kind == "recycle" {
		maxAge = 100 * time.Millisecond
	}
	provider, err := r.newProvider(maxAge, func() *rig { return r })
	if err != nil {
		return err
	}
	if !r.drive(ctx, provider) {
		return nil // the process ends, and all it has with it
	}
	ending := time.Now()
	r.probe(ctx, provider)
	r.closeProvider(provider)
	r.requireBack(goroutines, files)
	r.requireClean(ending)
	return nil
}

// drive runs the builds, injects the faults, and undoes them when all builds have ended. It returns false if that did
// not happen in time.
func (r *rig) drive(ctx context.Context, provider *fleet) bool {
	r.provider = provider
	var watch, faults, builds sync.WaitGroup
	watch.Go(r.watchLedgers)
	watch.Go(r.watchConnections)
	for _, f := range r.plan.Faults {
		faults.Go(func() { r.inject(f) })
	}
	for _, b := range r.builds {
		builds.Go(func() { r.runBuild(ctx, provider, b) })
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		builds.Wait()
	}()
	bound := buildBound
	switch {
	case r.spec.slow:
		bound = slowBuildBound
	case r.spec.campaign:
		bound += r.spec.linger
	}
	if !await(bound, func() bool { return pause.Done(ended) }) {
		r.findNoEnd(bound)
		r.healAll()
		return false
	}
	close(r.over)
	watch.Wait()
	faults.Wait()
	r.healAll()
	return true
}

// closeProvider closes the manager's end, which has a bound.
func (r *rig) closeProvider(provider *fleet) {
	begin := time.Now()
	if err := provider.Close(); err != nil {
		r.find(Finding{What: Leak, Text: fmt.Sprintf("close the provider: %v", err)})
	}
	if took := time.Since(begin); took > closeMargin {
		r.find(Finding{What: NoEnd, Text: fmt.Sprintf("Provider.Close took %v", took)})
	}
}

// newProvider returns the manager's end for the VMs. The present rig is told of builds by the product.
func (r *rig) newProvider(maxAge time.Duration, present func() *rig) (*fleet, error) {
	var all []instance.Instance
	for _, m := range r.vms {
		all = append(all, instance.Instance{
			ID:       m.id,
			Addr:     m.dialed().String(),
			Capacity: len(r.builds) + len(r.plan.Faults),
			Runner:   r.runner(m),
			Options:  vmconfig.Options{TempDir: m.tmp},
			SSH: mux.Config{
				User:              r.who.user,
				Auth:              []login.Auth{login.Key("of the rig", r.who.key)},
				HostKeys:          login.PinnedHostKeys(m.hostKey.PublicKey()),
				KeepaliveInterval: keepaliveInterval,
				KeepaliveTimeout:  keepaliveTimeout,
				Trace:             &mux.Trace{DialPhase: m.dialPhase},
			},
		})
	}
	group, err := instance.NewGroup(all...)
	if err != nil {
		return nil, err
	}
	cfg := instance.Config{
		Group:       group,
		Route:       connector.Route(r.plan.Route),
		MaxAge:      maxAge,
		StopTimeout: stopTimeout,
		Grace:       jobGrace,
		Logger:      r.log,
		Trace: &connector.Trace{
			ServeReady: func(id string, _ connector.Route, _ time.Duration) { present().reachOf(id, atReady) },
			ServeStop:  func(id string) { present().reachOf(id, atClose) },
			LinkBack:   func(id string, away time.Duration) { present().linkBack(id, away) },
		},
	}
	provider, err := instance.NewProvider(cfg)
	return &fleet{provider, group}, err
}

// runner returns the step runner's command on a VM.
func (r *rig) runner(m *machine) []string {
	if r.spec.wrapper == "" {
		return []string{r.opts.VMsEnd}
	}
	path := filepath.Join(m.dir, "stepmux")
	text := "#!/bin/sh\n" + r.spec.wrapper + "\nexec " + r.opts.VMsEnd + ` "$@"` + "\n"
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		return []string{path, err.Error()} // which fails, with the reason
	}
	return []string{path}
}

func (r *rig) reachOf(id string, at phase) {
	if b := r.build(id); b != nil {
		b.reach(at)
	}
}

// runBuild runs a build from its begin to its end.
func (r *rig) runBuild(ctx context.Context, provider *fleet, b *build) {
	timer := time.NewTimer(b.After)
	defer timer.Stop()
	<-timer.C
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.mu.Lock()
	b.cancel = cancel
	canceled := b.canceled
	b.mu.Unlock()
	if canceled { // before it began
		cancel()
	}
	e := provider.Executor(instance.Build{ID: b.ID, Log: b.sink, Linger: &r.spec.linger})
	err := r.execute(ctx, e, b)
	b.reach(atClose)
	r.cleanUp(ctx, e, b)
	for _, at := range phases { // whoever waits for one waits no more
		b.reach(at)
	}
	r.end(b, verdictOf(err))
}

func (r *rig) execute(ctx context.Context, e *instance.Executor, b *build) error {
	b.reach(atConnect)
	err := e.Prepare(ctx)
	b.mu.Lock()
	b.vm = e.Instance()
	b.mu.Unlock()
	if err != nil {
		return err
	}
	if b.Form == "shell" {
		b.reach(atReady)
		return e.Run(ctx, []byte(b.Text(b.ledger)))
	}
	if _, err := e.Connect(ctx); err != nil {
		return err
	}
	job := connector.Job{Job: &stepmuxv1.Job{Grace: durationpb.New(jobGrace)}}
	if b.Form == "steps" {
		job.Steps = b.Steps(b.ledger)
	} else {
		job.Script = b.Text(b.ledger)
	}
	return e.Execute(ctx, job)
}

// cleanUp ends everything of the build on its VM, in bounded time.
func (r *rig) cleanUp(ctx context.Context, e *instance.Executor, b *build) {
	begin := time.Now()
	err := e.Cleanup(context.WithoutCancel(ctx))
	if took := time.Since(begin); took > stopTimeout+closeMargin {
		r.find(Finding{What: NoEnd, Build: b.ID, Text: fmt.Sprintf("Cleanup took %v", took)})
	}
	if err == nil {
		return
	}
	r.mu.Lock()
	_, lossy := r.lossLocked(b.ID, e.Instance())
	r.mu.Unlock()
	if !lossy {
		r.find(Finding{What: NeedlessLoss, Build: b.ID, Text: "clean up: " + err.Error()})
	}
}

func verdictOf(err error) verdict {
	if err == nil {
		return verdict{}
	}
	failed := (*instance.BuildError)(nil)
	if !errors.As(err, &failed) {
		return verdict{Reason: "no BuildError", Text: err.Error()}
	}
	return verdict{Reason: string(failed.Reason), Code: failed.ExitCode, Text: failed.Err.Error()}
}

// findNoEnd reports the builds that have not ended, with the goroutines of this process.
func (r *rig) findNoEnd(bound time.Duration) {
	for _, b := range r.builds {
		b.mu.Lock()
		ended := !b.ended.IsZero()
		b.mu.Unlock()
		if !ended {
			r.find(Finding{What: NoEnd, Build: b.ID, Text: fmt.Sprintf("not within %v", bound)})
		}
	}
	_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
}

// probe runs a build on each VM: after the fault every VM must take builds again. (The build's step runner also sweeps
// the directories of step runners that were killed.)
func (r *rig) probe(ctx context.Context, provider *fleet) {
	ctx, cancel := context.WithTimeout(ctx, buildBound)
	defer cancel()
	// The last fault may have been just now, and harm the step runner that was prestarted for the next build.
	const tries = 3
	var err error
	for try := range tries {
		if err = r.probeOnce(ctx, provider, try); err == nil {
			return
		}
	}
	r.find(Finding{What: Unusable, Text: err.Error()})
}

func (r *rig) probeOnce(ctx context.Context, provider *fleet, try int) (failed error) {
	var held []*instance.Executor
	for i := range r.vms {
		e := provider.Executor(instance.Build{ID: fmt.Sprintf("probe-%d-%d-%d", r.plan.Round, try, i)})
		held = append(held, e)
		err := e.Prepare(ctx)
		if err == nil {
			_, err = e.Connect(ctx)
		}
		if err == nil {
			err = e.Execute(ctx, connector.Job{Job: &stepmuxv1.Job{Script: "exit 0"}})
		}
		if err == nil { // the next build goes elsewhere, even to a quarantined VM
			err = provider.group.Drain(e.Instance())
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", e.Instance(), err))
		}
	}
	for _, m := range r.vms {
		if err := provider.group.Undrain(m.id); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	for _, e := range held {
		if err := e.Cleanup(ctx); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: clean up: %w", e.Instance(), err))
		}
	}
	return failed
}

// requireBack waits until the process has no more goroutines and open files than at the beginning.
func (r *rig) requireBack(goroutines int, files map[string]int) {
	const bound = 10 * time.Second
	if !await(bound, func() bool { return runtime.NumGoroutine() <= goroutines }) {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		r.find(Finding{What: Leak, Text: fmt.Sprintf("%d goroutines, %d before: %s", runtime.NumGoroutine(), goroutines,
			stacks.String())})
	}
	if !await(bound, func() bool { return noMore(openFiles(), files) }) {
		r.find(Finding{What: Leak, Text: fmt.Sprintf("open files %v, before %v", openFiles(), files)})
	}
}

// noMore reports whether nothing is open that was not, or oftener.
func noMore(now, before map[string]int) bool {
	for name := range maps.Keys(now) {
		if now[name] > before[name] {
			return false
		}
	}
	return true
}
