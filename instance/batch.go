package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/connector"
)

// BatchBuild is one build of a batch.
type BatchBuild struct {
	ID  string
	Job connector.Job
	// Log receives the build's log and is closed at the build's end. Required.
	Log io.WriteCloser
}

// Batch is many builds at once, as many as the Group has slots for.
type Batch struct {
	Builds []BatchBuild
	// Timeout bounds each build, counted from the moment it has its slot. (Making the instance's
	// connection has a bound of its own.) If zero, none.
	Timeout time.Duration
	// OnStart is told that a build begins on an instance, OnEnd how it ended, also if it never began. Both are called from the builds'
	// goroutines, at the same time. May be nil.
	OnStart func(build, instance string)
	OnEnd   func(Report)
}

// Report says how one build went.
type Report struct {
	Build    string
	Instance string // empty if it never had a slot
	Err      *BuildError
	Route    connector.Choice
	// Connect is from the slot to a step runner that listens, FirstOutput from the slot to the first
	// byte of the build's log, Duration from the slot to the end of the clean-up. Zero where it did not
	// come to that.
	Connect, FirstOutput, Duration time.Duration
	// Cleanup says that something of the build may be left on the VM.
	Cleanup error
}

// RunBatch runs all builds of b and returns when the last has ended and is cleaned up. When ctx ends
// the builds are cancelled with their grace and those that wait never start; when abort ends too they
// are cut short.
func (p *Provider) RunBatch(ctx, abort context.Context, b Batch) []Report {
	reports := make([]Report, len(b.Builds))
	var wg sync.WaitGroup
	for i, build := range b.Builds {
		wg.Go(func() {
			reports[i] = p.runOne(ctx, abort, b, build)
			if b.OnEnd != nil {
				b.OnEnd(reports[i])
			}
		})
	}
	wg.Wait()
	return reports
}

func (p *Provider) runOne(ctx, abort context.Context, b Batch, build BatchBuild) Report {
	log := &firstWrite{w: build.Log}
	e := p.Executor(Build{ID: build.ID, Log: log})
	report := Report{Build: build.ID}
	defer context.AfterFunc(abort, func() { _ = e.Cleanup(abort) })() // its result comes below
	err := e.Prepare(ctx)
	report.Instance = e.Instance()
	if err == nil {
		if b.OnStart != nil {
			b.OnStart(build.ID, report.Instance)
		}
		err = p.connectAndExecute(ctx, b, build, e, &report)
	}
	if cleanup := e.Cleanup(abort); cleanup != nil {
		report.Cleanup = cleanup
		// Not the build's failure: it had ended. An error met earlier is the more telling one.
	}
	_ = build.Log.Close() // what it did not take, the writes said
	if failed := (*BuildError)(nil); errors.As(err, &failed) {
		report.Err = failed
	} else if err != nil {
		report.Err = &BuildError{Reason: RunnerSystemFailure, Err: err}
	}
	report.Route = e.Choice()
	if started := e.Started(); !started.IsZero() {
		report.Duration = time.Since(started)
		if first := log.first.Load(); first != 0 {
			report.FirstOutput = time.Unix(0, first).Sub(started)
		}
	}
	p.logEnd(report)
	return report
}

// logEnd says how a build went.
func (p *Provider) logEnd(r Report) {
	result, log := "success", p.cfg.Logger.With("build", r.Build, "instance", r.Instance, "route", r.Route.Start, "bridge", r.Route.Bridge)
	if r.Err != nil {
		result = string(r.Err.Reason)
	}
	if r.Cleanup != nil {
		log.Warn("something of the build may be left", "error", r.Cleanup)
	}
	log.Debug("build ended", "result", result, "took", r.Duration)
}

// connectAndExecute runs a build that has its slot.
func (p *Provider) connectAndExecute(ctx context.Context, b Batch, build BatchBuild, e *Executor, report *Report) error {
	if b.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, e.Started().Add(b.Timeout), timeoutError(b.Timeout))
		defer cancel()
	}
	if _, err := e.Connect(ctx); err != nil {
		return err
	}
	report.Connect = time.Since(e.Started())
	return e.Execute(ctx, build.Job)
}

// firstWrite notes when the first byte was written.
type firstWrite struct {
	w     io.Writer
	first atomic.Int64 // unix nanoseconds, 0 before
}

func (f *firstWrite) Write(p []byte) (int, error) {
	if len(p) > 0 {
		f.first.CompareAndSwap(0, time.Now().UnixNano())
	}
	return f.w.Write(p)
}

// timeoutError says that a build took longer than it may.
type timeoutError time.Duration

func (e timeoutError) Error() string {
	return fmt.Sprintf("the build took longer than %v", time.Duration(e))
}

// Unwrap makes it what it is to a context.
func (e timeoutError) Unwrap() error { return context.DeadlineExceeded }
