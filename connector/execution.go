package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/internal/pause"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	// maxEvents bounds the reported changes of steps. A job of stepmux has at most 10,000 steps.
	maxEvents = 100_000
	// maxOutputs bounds the outputs of a job, names and values, in bytes.
	maxOutputs = 1 << 20
	// stallLimit is how long calls may fail one after the other, although the connection and serve live, before the
	// build is given up.
	stallLimit = 30 * time.Second
	// cancelLimit bounds the wait for the end of a cancelled job beyond its grace.
	cancelLimit = 10 * time.Second
)

// execution is one call of Execute.
type execution struct {
	rpc          pb.StepRunnerClient
	job          Job
	log, stderr  *buildlog.Log // for stdout and for stderr; they may be the same
	traceTimeout time.Duration // for one write to the job's Trace
	last         *pb.JobState  // the job's final state, set by follow; nil while unknown
	outputs      *pb.Outputs   // set with last
	resume       bool          // the step runner supports FollowRequest.from
	patience     time.Duration // see retryFor
	stays        *bool         // set once the step runner may have the job, or if another one would fail it, too
}

// submit delivers the job. The step runner runs a job that is sent twice once, so a call that broke is repeated.
func (e *execution) submit(ctx, calls context.Context) error {
	req := &pb.RunRequest{
		Id: e.job.ID, WorkDir: e.job.WorkDir, Job: withContainers(e.job.Job, e.job.Containers),
		Trace: e.job.Trace != nil, Image: e.job.Image,
	}
	return deliver(ctx, calls, e.patience, req, func(ctx context.Context) error {
		again := *e.stays
		*e.stays = true
		_, err := e.rpc.Run(ctx, req)
		*e.stays = again || err == nil || broken(err) || ctx.Err() != nil // else it has refused the job
		return err
	}, e.cancel)
}

// deliver repeats a call that delivers a job until it succeeds. If ctx ends, the job may have arrived nevertheless;
// cancel then asks for its end.
func deliver(
	ctx, calls context.Context, patience time.Duration, req proto.Message, call, cancel func(context.Context) error,
) error {
	text, err := proto.Marshal(req)
	if err != nil { // as of text that is not UTF-8: gRPC would call that a failure of the transport, which is repeated
		return &RequestError{Message: fmt.Sprintf("the request cannot be delivered: %v", err)}
	}
	if len(text) > maxMessage {
		return &RequestError{Message: fmt.Sprintf("the request has %d bytes, at most %d can be delivered", len(text),
			maxMessage)}
	}
	until, end := context.WithCancelCause(calls)
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(ctx.Err()) })()
	err = retryFor(until, patience, func() (bool, error) { return false, call(until) })
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		retryCancel(calls, cancel) // it may have arrived
		return ctx.Err()
	case calls.Err() != nil:
		return context.Cause(calls)
	case status.Code(err) == codes.InvalidArgument, status.Code(err) == codes.AlreadyExists:
		return &RequestError{Message: status.Convert(err).Message()}
	default:
		return fmt.Errorf("deliver job: %w", err)
	}
}

// follow delivers the job's output and its trace, and returns its result. If ctx ends before the result is known, it
// cancels the job; the rest may then take the grace and cancelLimit.
func (e *execution) follow(
	ctx, calls context.Context, end context.CancelCauseFunc,
) (result Result, traceErr, err error) {
	group, following := errgroup.WithContext(calls)
	var late error // ctx's cause, if ctx ended before the job
	var known atomic.Bool
	var stdout, stderr int64
	group.Go(func() (err error) {
		stdout, stderr, err = e.followIO(following)
		return err
	})
	group.Go(func() (err error) {
		e.last, e.outputs, err = e.followSteps(following)
		late = ctx.Err()
		known.Store(true)
		return err
	})
	defer cancelAfter(ctx, calls, e.job.GetGrace().AsDuration(), func(ctx context.Context) error {
		if known.Load() {
			return nil // Cancel would make the step runner forget a job that has ended
		}
		return e.cancel(ctx)
	}, end)()
	err = group.Wait()
	if err == nil {
		err = errors.Join(e.log.Flush(calls), e.stderr.Flush(calls))
	}
	switch {
	case err != nil:
	case stdout < e.last.GetStdoutLen():
		err = fmt.Errorf("output was lost: %d of %d bytes of stdout arrived", stdout, e.last.GetStdoutLen())
	case stderr < e.last.GetStderrLen():
		err = fmt.Errorf("output was lost: %d of %d bytes of stderr arrived", stderr, e.last.GetStderrLen())
	}
	if err == nil && e.job.Trace != nil {
		if traceErr = errNeverBegan; !resultOf(e.last).neverBegan() {
			traceErr = e.fetchTrace(calls)
		}
	}
	switch {
	case late != nil:
		return Result{}, cmp.Or(traceErr, err), late
	case err != nil:
		return Result{}, err, err
	}
	return e.withOutputs(resultOf(e.last)), traceErr, nil
}

// withOutputs delivers the outputs of a job that has ended, and returns its result: a job whose outputs are refused has
// failed.
func (e *execution) withOutputs(result Result) Result {
	if e.job.OnOutputs == nil {
		return result
	}
	values, masked := map[string]string{}, []string(nil)
	size, refused := 0, e.outputs.GetRefused()
	for _, o := range e.outputs.GetGiven() {
		if size += len(o.GetName()) + len(o.GetValue()); size > maxOutputs { // a step runner refuses so many
			values, masked, refused = map[string]string{}, nil, "the step runner has sent too many outputs"
			break
		}
		if o.GetMasked() {
			masked = append(masked, o.GetName())
		} else {
			values[o.GetName()] = o.GetValue()
		}
	}
	slices.Sort(masked)
	e.job.OnOutputs(values, masked)
	if refused != "" && result.Status == Succeeded {
		result.Status, result.Message = Failed, refused
	}
	return result
}

// cancelAfter cancels a job when ctx ends. If the job has not ended after its grace and cancelLimit, it ends the
// calls. The caller calls ended when the job has ended.
func cancelAfter(
	ctx, calls context.Context, grace time.Duration, cancel func(context.Context) error, end context.CancelCauseFunc,
) (ended func()) {
	running, over := context.WithCancel(calls)
	done := make(chan struct{})
	forget := context.AfterFunc(ctx, func() {
		defer close(done)
		retryCancel(running, cancel)
		timer := time.NewTimer(grace + cancelLimit)
		defer timer.Stop()
		select {
		case <-running.Done():
		case <-timer.C:
			end(fmt.Errorf("the job, or the delivery of its output, did not end within %v", grace+cancelLimit))
		}
	})
	return func() {
		if over(); !forget() {
			<-done
		}
	}
}

// retryCancel repeats the request to cancel a job until the step runner confirms it. The job's status then shows the
// effect.
func retryCancel(calls context.Context, cancel func(context.Context) error) {
	calls, stop := context.WithTimeout(calls, cancelLimit)
	defer stop()
	_ = retry(calls, func() (bool, error) { return false, cancel(calls) })
}

func (e *execution) cancel(ctx context.Context) error {
	_, err := e.rpc.Cancel(ctx, &pb.CancelRequest{Id: e.job.ID})
	return err
}

// followIO delivers stdout and stderr until both have ended, and returns their lengths. After a broken call it
// continues where it stopped.
func (e *execution) followIO(ctx context.Context) (stdout, stderr int64, err error) {
	stdout, stderr = e.log.State().Stdout, e.stderr.State().Stderr
	err = retryFor(ctx, e.patience, func() (progress bool, err error) {
		before := stdout + stderr
		stream, err := e.rpc.FollowIO(ctx, &pb.FollowIORequest{
			Id:           e.job.ID,
			ReadStdout64: stdout,
			ReadStderr64: stderr,
		})
		if err != nil {
			return false, err
		}
		err = receive(stream, func(msg *pb.FollowIOResponse) error {
			from, log, isStderr := stdout, e.log, msg.GetStreamType() == pb.FollowIOResponse_stderr
			if isStderr {
				from, log = stderr, e.stderr
			}
			if msg.GetOffset() != from {
				return fmt.Errorf("the step runner sent output from byte %d, not from byte %d", msg.GetOffset(), from)
			}
			n, err := log.WriteOutput(ctx.Done(), msg.GetStream(), isStderr)
			if _, err := delivered(ctx, n, err); err != nil {
				return err
			}
			if isStderr {
				stderr += int64(len(msg.GetStream()))
			} else {
				stdout += int64(len(msg.GetStream()))
			}
			return nil
		})
		return stdout+stderr > before, err
	})
	return stdout, stderr, err
}

// receive calls take with each message of a stream, until the stream ends or take fails.
func receive[M any](stream grpc.ServerStreamingClient[M], take func(*M) error) error {
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = take(msg)
		}
		if err != nil {
			return err
		}
	}
}

// logWriter writes a job's output to its log, until ctx ends.
type logWriter struct {
	ctx context.Context // of one call; Write stops when it ends
	log *buildlog.Log
}

func (w logWriter) Write(output []byte) (int, error) {
	n, err := w.log.WriteUntil(w.ctx.Done(), output)
	return delivered(w.ctx, n, err)
}

// delivered turns the result of a write that ctx bounded into ctx's cause, if ctx ended it.
func delivered(ctx context.Context, n int, err error) (int, error) {
	switch {
	case err == nil:
		return n, nil
	case ctx.Err() != nil:
		return n, context.Cause(ctx)
	default:
		return n, &buildlog.Error{Err: err}
	}
}

// followSteps reports step events and returns the final state and the outputs of the job. If Follow breaks, it goes on
// with the next event. An older step runner then starts from the first event; events that were reported before are
// skipped.
func (e *execution) followSteps(
	ctx context.Context,
) (last *pb.JobState, outputs *pb.Outputs, err error) {
	reported := e.log.State().Events
	err = retryFor(ctx, e.patience, func() (progress bool, err error) {
		from := 0
		if e.resume {
			from = reported
		}
		stream, err := e.rpc.Follow(ctx, &pb.FollowRequest{Id: e.job.ID, Brief: true, From: int64(from)})
		if err != nil {
			return false, err
		}
		for n := from; ; n++ {
			msg, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return progress, status.Error(codes.Internal, "the step runner did not say how the job ended")
			case err != nil:
				return progress, err
			case msg.GetJob() != nil:
				last, outputs = msg.GetJob(), msg.GetOutputs()
				return true, nil
			case n == maxEvents:
				return progress, fmt.Errorf("the step runner reported more than %d changes of steps", maxEvents)
			}
			if n < reported {
				continue
			}
			progress, reported = true, n+1
			e.log.Event(ctx.Done(), warnings(msg.GetResult()))
			if r := msg.GetResult(); r != nil && e.job.OnStep != nil {
				name, status, code := r.GetStep().GetName(), r.GetStatus().String(), int(r.GetExitCode())
				e.job.OnStep(StepEvent{Name: name, Status: status, ExitCode: code, Message: r.GetMessage()})
			}
		}
	})
	return last, outputs, err
}

// warnings returns the log lines for the warnings of a step that has ended.
func warnings(r *pb.StepResult) string {
	if r.GetStatus() == pb.StepResult_running {
		return ""
	}
	var text strings.Builder
	for _, w := range r.GetWarnings() {
		fmt.Fprintf(&text, "warning: step %q: %s\n", r.GetStep().GetName(), w)
	}
	return text.String()
}

// resultOf translates the job's final state. An unknown status is not a success.
func resultOf(job *pb.JobState) Result {
	r := Result{
		Status: Failed, ExitCode: int(job.GetExitCode()), Message: job.GetMessage(),
		TimedOut: job.GetTimedOut(), System: job.GetSystemFailed(), NothingStarted: job.GetNothingStarted(),
		ServerFailed: job.GetServerFailed(),
	}
	switch job.GetStatus() { //nolint:exhaustive // a job that is reported as running has not succeeded
	case pb.JobState_suceeded: //nolint:misspell // the published spelling
		r.Status = Succeeded
	case pb.JobState_cancelled:
		r.Status = Cancelled
	}
	return r
}

// errNeverBegan is the reason why there is no trace of such a job.
var errNeverBegan = errors.New("no command of the job was started")

// neverBegan reports whether the VM failed the job before its first command.
func (r Result) neverBegan() bool { return r.Status == Failed && r.System && r.NothingStarted }

// retry repeats call until it succeeds, ctx ends, or the error is an answer of the step runner and not a broken
// bridge. It gives up when calls have failed for stallLimit one after the other. A call that made progress, or lasted
// that long, restarts the count.
func retry(ctx context.Context, call func() (progress bool, err error)) error {
	return retryFor(ctx, stallLimit, call)
}

// retryFor is retry with another time limit.
func retryFor(ctx context.Context, patience time.Duration, call func() (progress bool, err error)) error {
	var stalled time.Time
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		start := time.Now()
		progress, err := call()
		if err == nil || ctx.Err() != nil || !broken(err) {
			return err
		}
		switch {
		case progress, time.Since(start) > patience:
			stalled, wait = time.Time{}, 10*time.Millisecond
		case stalled.IsZero():
			stalled = time.Now()
		case time.Since(stalled) > patience:
			return err
		}
		if pause.For(ctx, wait) != nil {
			return err
		}
	}
}

// broken reports whether err is a failure of the transport. A new bridge may repair that.
func broken(err error) bool {
	code := status.Code(err) // all other codes are answers of the step runner, or our own errors
	return code == codes.Unavailable || code == codes.Canceled || code == codes.Internal
}
