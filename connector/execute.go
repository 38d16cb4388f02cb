package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	// maxMessage bounds one message to the step runner: a job.
	maxMessage = 64 << 20
	// maxAnswer bounds one message from the step runner: a piece of output or of a trace, or the state of a step. Another
	// step runner keeps to this limit too, which is gRPC's default.
	maxAnswer = 4 << 20
	// window is how many bytes of a stream the step runner may send before they are read.
	window = 1 << 20
	// maxHeaders bounds the metadata of an answer. An error may quote the job.
	maxHeaders = 4 << 20
	// maxText bounds a message about a job, in bytes: the caller may keep many.
	maxText = 4 << 10
	// maxEvents bounds the changes of steps that are reported. A job of stepmux has 10,000 steps at most.
	maxEvents = 100_000
	// stallLimit is how long calls may fail one after the other, over a connection and a serve that
	// both live, before the build is given up.
	stallLimit = 30 * time.Second
	// pingAfter is how long the step runner may be silent before it is asked for an answer, and pingTimeout how long
	// that may take, before its bridge counts as broken.
	pingAfter, pingTimeout = 30 * time.Second, 30 * time.Second
	// gitlabPingAfter is pingAfter for another step runner: by its default policy a gRPC server closes a connection with
	// more than one ping in five minutes (keepalive.EnforcementPolicy).
	gitlabPingAfter = 6 * time.Minute
	// cancelLimit bounds the wait for the end of a cancelled job beyond its grace.
	cancelLimit = 10 * time.Second

	defaultGrace = 10 * time.Second
)

// Job is a build's work: a script or steps.
type Job struct {
	// ID names the job within its step runner. If empty, the build's ID.
	ID string
	// Script is a shell script. Exclusive with Steps.
	Script string
	// Steps is a YAML document with a run: list. Exclusive with Script.
	Steps []byte
	// Env is the environment of the steps. It travels in the request, never on a command line and
	// never in the environment of the step runner.
	Env map[string]string
	// Vars are the job's variables. They travel as Env does.
	Vars []Variable
	// WorkDir is where steps run, relative to the login's home. If empty, a fresh directory that is
	// removed at the end.
	WorkDir string
	// Timeout ends the job as failed. If zero, the step runner's limit.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL when the job is stopped. If zero, 10s. GitLab's step runners have
	// a grace of their own; for them it bounds the wait for the job's end.
	Grace time.Duration
	// PassEnv says which variables of the step runner's own environment reach the steps: names, in addition to a few that
	// tell of the machine, the user and the proxies; "all" for all but those that look like secrets, or "none".
	PassEnv []string
	// UnsafeExports says what becomes of exports such as LD_PRELOAD: drop, refuse or allow. If empty, drop.
	UnsafeExports string
	// Trace gets the job's trace, as JSON, once the job has ended, however it did, in one write after the other. A
	// write that takes longer than Config.LogTimeout, or than the build lives, is given up: then the trace ends there,
	// and OnTrace gets an error. May be nil: then no trace is made.
	Trace io.Writer
	// OnTrace is called once before Execute returns, if there is a Trace: with nil if all of it was written, else with
	// the reason. The error is ErrNoTrace if the step runner cannot make a trace. May be nil.
	OnTrace func(error)
	// OnStep is called for each change of a step, from one goroutine. GitLab's step runners report no changes. May be nil.
	OnStep func(StepEvent)
}

// Variable is a job variable: expressions know it, the environment of a step does not.
type Variable struct {
	// Key matches [A-Za-z_][A-Za-z0-9_]*. Those of one job differ.
	Key   string
	Value string
	// File says that steps get the path of a file with the value.
	File bool
	// Masked says that the value is a secret.
	Masked bool
}

// StepEvent reports the start or the end of a step.
type StepEvent struct {
	Name     string
	Status   string // running, success, failure, cancelled or skipped
	ExitCode int    // of a step that failed
	Message  string // why it did not succeed
}

// Status is a job's final state.
type Status string

// The final states.
const (
	Succeeded Status = "success"
	Failed    Status = "failure"
	Cancelled Status = "cancelled"
)

// Result is the end of a job, as the step runner reports it.
type Result struct {
	Status   Status
	ExitCode int    // of the step that failed; 0 if none did
	Message  string // why it did not succeed
	TimedOut bool   // the job's Timeout ended it
	System   bool   // the VM or the step runner failed it, not its own steps; GitLab's step runners do not report that
}

// Execute runs job in the step runner that Connect started and writes its stdout and stderr to trace as they come,
// through a [buildlog.Log] unless it is one. It returns when the job has ended and all its output is delivered.
//
// When ctx ends the job is cancelled (SIGTERM, its grace, SIGKILL); Execute still delivers the job's last output, then
// returns ctx.Err(). A ctx that ends after the step runner has reported the job's end does not change the Result: the
// delivery of its output and its trace goes on, for the grace and ten seconds at most. A bridge that breaks is opened
// anew and the output goes on where it stopped.
//
// The Result is valid exactly when the error is nil: then the step runner reported the job's end. Else
// the error is ctx.Err(), a [*RequestError], a [*buildlog.Error], or the reason of the end of the build's life: a
// [*ServeError], a [*mux.ConnError] or ErrClosed. It is any other when the step runner gave no sensible
// answer for long. Close ends a job that may still run.
func (c *Connector) Execute(ctx context.Context, job Job, trace io.Writer) (Result, error) {
	b, connected := c.current()
	if b == nil || !connected || b.serve == nil || !b.serve.ready.Load() {
		return Result{}, errors.New("connector: Execute without a Connect that succeeded")
	}
	job.ID = cmp.Or(job.ID, c.cfg.BuildID)
	job.Grace = cmp.Or(job.Grace, defaultGrace)
	traced := errors.New("the job did not get as far as that")
	if job.Trace != nil && job.OnTrace != nil {
		defer func() { job.OnTrace(traced) }()
	}
	// The calls outlive ctx, whose end cancels the job. They end with the build's life.
	calls, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	defer context.AfterFunc(c.life, func() { end(context.Cause(c.life)) })() //nolint:contextcheck // c.life is the build's

	log, closeLog := buildlog.Of(trace, c.cfg.LogTimeout)
	defer closeLog(calls)
	defer log.OnFailure(end)()

	client, err := b.newClient()
	if err != nil {
		return Result{}, err
	}
	defer client.Close()
	var result Result
	result, traced, err = b.execute(ctx, calls, end, client, job, log)
	if err != nil && calls.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = context.Cause(calls)
	}
	result.Message = termtext.Cut(result.Message, maxText)
	return result, shortened(err)
}

// shortened returns err with at most maxText of a text from the VM.
func shortened(err error) error {
	if told, ok := status.FromError(err); ok && len(told.Message()) > maxText {
		return status.Error(told.Code(), termtext.Cut(told.Message(), maxText))
	}
	return err
}

// execute runs job by the service of the VM's step runner. calls is the life of its calls, which end ends.
func (b *build) execute(
	ctx, calls context.Context, end context.CancelCauseFunc, client *grpc.ClientConn, job Job, log *buildlog.Log,
) (result Result, traceErr, err error) {
	if b.program.Kind == program.StepRunner {
		job.WorkDir = cmp.Or(job.WorkDir, workDir(b.serve.socket))
		e := &gitlabExecution{rpc: runnerproto.NewStepRunnerClient(client), job: job, log: log}
		result, err = e.run(ctx, calls, end)
		return result, ErrNoTrace, err
	}
	traceTimeout := cmp.Or(b.c.cfg.LogTimeout, buildlog.DefaultTimeout)
	e := &execution{rpc: pb.NewStepRunnerClient(client), job: job, log: log, traceTimeout: traceTimeout}
	if err := e.submit(ctx, calls); err != nil {
		return Result{}, err, err
	}
	return e.follow(ctx, calls, end)
}

// newClient returns a gRPC client over this build's bridges.
func (b *build) newClient() (*grpc.ClientConn, error) {
	ping := keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}
	if b.program.Kind == program.StepRunner {
		ping.Time = gitlabPingAfter
	}
	again := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second}
	client, err := grpc.NewClient("passthrough:///step-runner",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the bridge runs inside SSH
		b.c.withCredentials(),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return b.dial() }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(maxMessage),
			grpc.ForceCodecV2(leanCodec{encoding.GetCodecV2(grpcproto.Name)})),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(4*window), // given back on receipt, so it bounds no memory, only the speed
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: stallLimit}),
		// A serve that is frozen keeps its socket open: only silence shows it.
		grpc.WithKeepaliveParams(ping),
		grpc.WithReadBufferSize(16<<10), // a frame (RFC 9113, section 4.2): idle builds are many
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to step runner: %w", err)
	}
	return client, nil
}

// execution is one call of Execute.
type execution struct {
	rpc          pb.StepRunnerClient
	job          Job
	log          *buildlog.Log
	traceTimeout time.Duration // for one write to the job's Trace
}

// submit delivers the job. The step runner takes a job that is sent twice for one, so a call that broke is repeated.
func (e *execution) submit(ctx, calls context.Context) error {
	req := &pb.RunRequest{
		Id:      e.job.ID,
		WorkDir: e.job.WorkDir,
		Env:     e.job.Env,
		Grace:   durationpb.New(e.job.Grace),
		Timeout: durationpb.New(max(e.job.Timeout, 0)),
		Trace:   e.job.Trace != nil,
		PassEnv: e.job.PassEnv, UnsafeExports: e.job.UnsafeExports,
	}
	for _, v := range e.job.Vars {
		req.Variables = append(req.Variables, &pb.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked})
	}
	if e.job.Steps != nil {
		req.Type, req.StepsYaml = pb.RunRequest_step, string(e.job.Steps)
	} else {
		req.Type, req.CiScript = pb.RunRequest_script, e.job.Script
	}
	return deliver(ctx, calls, req, func(ctx context.Context) error {
		_, err := e.rpc.Run(ctx, req)
		return err
	}, e.cancel)
}

// deliver repeats a call that delivers a job until it arrives. cancel asks for the end of a job that ctx's end may have
// overtaken.
func deliver(ctx, calls context.Context, req proto.Message, call, cancel func(context.Context) error) error {
	if size := proto.Size(req); size > maxMessage {
		return &RequestError{Message: fmt.Sprintf("it is %d bytes, at most %d can be delivered", size, maxMessage)}
	}
	until, end := context.WithCancelCause(calls)
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(ctx.Err()) })()
	err := retry(until, func() (bool, error) { return false, call(until) })
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

// follow delivers the job's output and its trace, and returns its result. When ctx ends before that is known, it
// cancels the job. Either way the rest may take the grace and cancelLimit from then on.
func (e *execution) follow(
	ctx, calls context.Context, end context.CancelCauseFunc,
) (result Result, traceErr, err error) {
	group, following := errgroup.WithContext(calls)
	var last *pb.Job
	var late error // ctx's, if it ended before the job
	var known atomic.Bool
	var stdout, stderr int64
	group.Go(func() (err error) {
		stdout, stderr, err = e.followIO(following)
		return err
	})
	group.Go(func() (err error) {
		last, err = e.followSteps(following)
		late = ctx.Err()
		known.Store(true)
		return err
	})
	defer cancelAfter(ctx, calls, e.job.Grace, func(ctx context.Context) error {
		if known.Load() {
			return nil // the step runner would remove a job that has ended
		}
		return e.cancel(ctx)
	}, end)()
	err = group.Wait()
	if err == nil {
		err = e.log.Flush(calls)
	}
	switch {
	case err != nil:
	case stdout < last.GetStdoutLen():
		err = fmt.Errorf("output was lost: %d of %d bytes of stdout arrived", stdout, last.GetStdoutLen())
	case stderr < last.GetStderrLen():
		err = fmt.Errorf("output was lost: %d of %d bytes of stderr arrived", stderr, last.GetStderrLen())
	}
	if err == nil && e.job.Trace != nil {
		traceErr = e.fetchTrace(calls)
	}
	switch {
	case late != nil:
		return Result{}, cmp.Or(traceErr, err), late
	case err != nil:
		return Result{}, err, err
	}
	return resultOf(last), traceErr, nil
}

// cancelAfter cancels a job when ctx ends, and ends its calls if it has not ended after its grace and cancelLimit. The
// caller calls ended when the job has ended.
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

// retryCancel asks for a job's end until the step runner has heard it. The job's status then shows the effect.
func retryCancel(calls context.Context, cancel func(context.Context) error) {
	calls, stop := context.WithTimeout(calls, cancelLimit)
	defer stop()
	_ = retry(calls, func() (bool, error) { return false, cancel(calls) })
}

func (e *execution) cancel(ctx context.Context) error {
	_, err := e.rpc.Cancel(ctx, &pb.CancelRequest{Id: e.job.ID})
	return err
}

// followIO delivers both streams, until both have ended, and returns their lengths. After a break it goes on where it
// stopped.
func (e *execution) followIO(ctx context.Context) (stdout, stderr int64, err error) {
	log := logWriter{ctx, e.log}
	err = retry(ctx, func() (progress bool, err error) {
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
			from, isStderr := stdout, msg.GetStreamType() == pb.FollowIOResponse_stderr
			if isStderr {
				from = stderr
			}
			if msg.GetOffset() != from {
				return fmt.Errorf("the step runner sent output from byte %d, not from byte %d", msg.GetOffset(), from)
			}
			if _, err := log.Write(msg.GetStream()); err != nil {
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

// receive passes the messages of a stream to take, until the stream ends or take fails.
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
	ctx context.Context //nolint:containedctx // a Writer for one call
	log *buildlog.Log
}

func (w logWriter) Write(output []byte) (int, error) {
	n, err := w.log.WriteUntil(w.ctx.Done(), output)
	switch {
	case err == nil:
		return n, nil
	case w.ctx.Err() != nil:
		return n, context.Cause(w.ctx)
	default:
		return n, &buildlog.Error{Err: err}
	}
}

// followSteps reports step events and returns the job's final state. A Follow that broke starts from
// the first event again; the events that were reported before are skipped.
func (e *execution) followSteps(ctx context.Context) (last *pb.Job, err error) {
	reported := 0
	err = retry(ctx, func() (progress bool, err error) {
		stream, err := e.rpc.Follow(ctx, &pb.FollowRequest{Id: e.job.ID, Brief: true})
		if err != nil {
			return false, err
		}
		for n := 0; ; n++ {
			msg, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return progress, status.Error(codes.Internal, "the step runner did not say how the job ended")
			case err != nil:
				return progress, err
			case msg.GetJob() != nil:
				last = msg.GetJob()
				return true, nil
			case n == maxEvents:
				return progress, fmt.Errorf("the step runner reported more than %d changes of steps", maxEvents)
			}
			if n < reported {
				continue
			}
			progress, reported = true, n+1
			e.showWarnings(ctx, msg.GetResult())
			if r := msg.GetResult(); r != nil && e.job.OnStep != nil {
				name, status, code := r.GetStep().GetName(), r.GetStatus().String(), int(r.GetExitCode())
				e.job.OnStep(StepEvent{Name: name, Status: status, ExitCode: code, Message: r.GetMessage()})
			}
		}
	})
	return last, err
}

// showWarnings puts the warnings about a step that has ended into the log.
func (e *execution) showWarnings(ctx context.Context, r *pb.StepResult) {
	if r.GetStatus() == pb.StepResult_running {
		return
	}
	for _, w := range r.GetWarnings() {
		fmt.Fprintf(e.log.Remarks(ctx.Done()), "warning: step %q: %s\n", r.GetStep().GetName(), w)
	}
}

// resultOf translates the job's final state. A status that is not known is not success.
func resultOf(job *pb.Job) Result {
	r := Result{
		Status: Failed, ExitCode: int(job.GetExitCode()), Message: job.GetMessage(),
		TimedOut: job.GetTimedOut(), System: job.GetSystemFailed(),
	}
	switch job.GetStatus() { //nolint:exhaustive // a job that is reported as running has not succeeded
	case pb.Job_suceeded: //nolint:misspell // the published spelling
		r.Status = Succeeded
	case pb.Job_cancelled:
		r.Status = Cancelled
	}
	return r
}

// retry repeats call until it succeeds, ctx ends, or its error is the step runner's answer and not a
// broken bridge's. It gives up when calls have failed one after the other for stallLimit; a call that made
// progress, or lasted for that long before it broke, restarts the count.
func retry(ctx context.Context, call func() (progress bool, err error)) error {
	var stalled time.Time
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		start := time.Now()
		progress, err := call()
		if err == nil || ctx.Err() != nil || !broken(err) {
			return err
		}
		switch {
		case progress, time.Since(start) > stallLimit:
			stalled, wait = time.Time{}, 10*time.Millisecond
		case stalled.IsZero():
			stalled = time.Now()
		case time.Since(stalled) > stallLimit:
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// broken reports whether err is a failure of the transport, which a new bridge may repair.
func broken(err error) bool {
	code := status.Code(err) // all others are answers of the step runner, or our own errors
	return code == codes.Unavailable || code == codes.Canceled || code == codes.Internal
}
