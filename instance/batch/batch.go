// Package batch runs many builds at once on the instances of a provider, and reports the outcome of each.
//
// [Run] runs a [Batch] and returns a [Report] for each build. It owns the builds' executors, and has cleaned them up
// when it returns. See package instance for one build.
package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
)

// Build is one build of a batch.
type Build struct {
	ID  string
	Job connector.Job
	// Log receives the build's log and is closed at the build's end. If nil, the log is discarded.
	Log io.WriteCloser
	// On and Labels select its instance; see [instance.Build].
	On     string
	Labels map[string]string
	// Place describes where the steps run; see instance.Build. If nil, they run on the instance itself.
	Place place.Description
}

// Batch is a set of builds. As many run at once as the group has slots.
type Batch struct {
	Builds []Build
	// Timeout bounds each build, counted from the moment it has its slot. (Connecting to the instance has a bound of
	// its own.) If zero, unbounded.
	Timeout time.Duration
	// Linger is that of each build; see [instance.Build].
	Linger *time.Duration
	// MaxFailures is the number of failures after which builds that wait for a slot are not started. If zero,
	// unlimited.
	MaxFailures int
	// OnStart is called when a build begins on an instance, which it may still leave for another (see
	// [instance.Executor.Connect]), OnEnd when it has ended, even if it never began. Both are
	// called from the builds' goroutines, concurrently. They may be nil.
	OnStart func(build, instance string)
	OnEnd   func(Report)
	// Logger receives messages for operators. If nil, nothing is logged.
	Logger *slog.Logger
}

// Report is the outcome of one build.
type Report struct {
	Build    string
	Instance string // empty if it never had a slot
	Err      *instance.BuildError
	Route    connector.Choice
	// Isolation is zero for a build whose job did not come to its end.
	Isolation program.Isolation
	// Usage is the time and memory of its processes. It is zero for such a build too, and if the VM does not report
	// it.
	Usage program.Usage
	// Connect is the time from the slot to a listening step runner, FirstOutput from the slot to the first output
	// of the job, Duration from the slot to the end of the clean-up. Each is zero if the build did not get that
	// far.
	Connect, FirstOutput, Duration time.Duration
	// Waited is the time from the request for the build (in a batch, its place in the queue) to the slot. It is zero
	// for a build that got no slot.
	Waited time.Duration
	// Cleanup is the error of ending the build on the VM. It is nil after a lost connection, too: see Left.
	Cleanup error
	// Left lists what may be left of the build; see [instance.Executor.Left]. It is untrusted text.
	Left []string
	// Forced is why the step runner was ended by `steps end`; see [instance.Executor.Forced].
	Forced string
}

// ErrFailures is the cause for a build that was not started because too many others had failed.
var ErrFailures = errors.New("too many builds have failed")

// Run runs all builds of b on p's instances, in their order as slots become free. It returns when the last has ended
// and is cleaned up. When ctx ends, running builds are cancelled with their grace and waiting builds are not started.
// When abort ends too, the builds are cut short.
func Run(ctx, abort context.Context, p *instance.Provider, b Batch) []Report {
	b.Logger = cmp.Or(b.Logger, slog.New(slog.DiscardHandler))
	reports := make([]Report, len(b.Builds))
	starting, noMore := context.WithCancelCause(ctx)
	defer noMore(nil)
	var failures atomic.Int64
	failed := func() {
		if failures.Add(1) == int64(b.MaxFailures) {
			noMore(fmt.Errorf("%w: %d", ErrFailures, b.MaxFailures))
		}
	}
	var wg sync.WaitGroup
	for i, build := range b.Builds {
		log, asked := &notedLog{Writer: io.Discard}, time.Now()
		if build.Log != nil {
			log.Writer = build.Log
		}
		e := p.Executor(instance.Build{
			ID: build.ID, Log: log, On: build.On, Labels: build.Labels, Place: build.Place,
			Linger: b.Linger, Timeout: b.Timeout,
		})
		e.Queue(nil) // builds start in their order
		wg.Go(func() {
			reports[i] = runOne(ctx, starting, abort, b, build, e, log, asked, failed)
			if b.OnEnd != nil {
				b.OnEnd(reports[i])
			}
		})
	}
	wg.Wait()
	return reports
}

// runOne runs a build. Once starting has ended, the build gets no slot. It calls failed if the build fails, before it
// releases the slot.
func runOne(
	ctx, starting, abort context.Context, b Batch, build Build, e *instance.Executor, log *notedLog, asked time.Time,
	failed func(),
) Report {
	if build.Log != nil {
		defer build.Log.Close() // Write has reported its failure already
	}
	report := Report{Build: build.ID}
	defer context.AfterFunc(abort, func() { _ = e.Cleanup(abort) })() // the call below returns its result
	err := b.execute(ctx, starting, e, build, &report)
	if err != nil {
		failed()
	}
	report.Instance = e.Instance()
	report.Cleanup = e.Cleanup(abort) // not the build's failure: it had ended
	report.Left, report.Forced = e.Left(), e.Forced()
	if failed := (*instance.BuildError)(nil); errors.As(err, &failed) {
		report.Err = failed
	} else if err != nil { // every error is a failure, even one that no Executor classified
		report.Err = &instance.BuildError{Reason: instance.RunnerSystemFailure, Err: err}
	}
	report.Route, report.Isolation, report.Usage = e.Choice(), e.Isolation(), e.Usage()
	if started := e.Started(); !started.IsZero() {
		report.Duration, report.Waited = time.Since(started), started.Sub(asked)
		if first := log.first.Load(); first != 0 {
			report.FirstOutput = time.Unix(0, first).Sub(started)
		}
	}
	b.logEnd(report)
	return report
}

// logEnd logs the outcome of a build.
func (b *Batch) logEnd(r Report) {
	result, log := "success", b.Logger.With(
		"build", r.Build, "instance", r.Instance, "route", r.Route.Start, "bridge", r.Route.Bridge)
	if r.Err != nil {
		result = string(r.Err.Reason)
	}
	if r.Cleanup != nil {
		log.Warn("the build's end on the VM failed", "error", r.Cleanup)
	}
	log.Debug("build ended", "result", result, "took", r.Duration)
}

// execute runs a build without its clean-up.
func (b *Batch) execute(
	ctx, starting context.Context, e *instance.Executor, build Build, report *Report,
) error {
	if err := e.Prepare(starting); err != nil {
		return err
	}
	if b.OnStart != nil {
		b.OnStart(build.ID, e.Instance())
	}
	for moved := false; ; moved = true {
		err := b.attempt(ctx, e, build, report, moved)
		if failed, ok := errors.AsType[*instance.BuildError](err); !ok || !failed.Elsewhere {
			return err
		}
	}
}

// attempt runs a build on one instance. A build that has moved may wait for a slot, for which its timeout does not
// count.
func (b *Batch) attempt(ctx context.Context, e *instance.Executor, build Build, report *Report, moved bool) error {
	connecting, cancel := ctx, context.CancelFunc(func() {})
	if !moved {
		connecting, cancel = b.bounded(ctx, e.Started())
	}
	defer cancel()
	if _, err := e.Connect(connecting); err != nil {
		return err
	}
	report.Connect = time.Since(e.Started())
	executing, cancel := b.bounded(ctx, e.Started())
	defer cancel()
	return e.Execute(executing, build.Job)
}

// bounded returns a context with the timeout of a build that got its slot at started.
func (b *Batch) bounded(ctx context.Context, started time.Time) (context.Context, context.CancelFunc) {
	if b.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, started.Add(b.Timeout), timeoutError(b.Timeout))
}

// notedLog is a build's log that notes when the first output of the job came.
type notedLog struct {
	io.Writer
	first atomic.Int64 // unix nanoseconds; 0 until then
}

// NoteOutput implements buildlog.OutputNoter.
func (l *notedLog) NoteOutput() { l.first.CompareAndSwap(0, time.Now().UnixNano()) }

// timeoutError reports that a build exceeded its timeout.
type timeoutError time.Duration

func (e timeoutError) Error() string {
	return fmt.Sprintf("the build took longer than %v", time.Duration(e))
}

// Unwrap makes errors.Is find context.DeadlineExceeded.
func (e timeoutError) Unwrap() error { return context.DeadlineExceeded }
