package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/step/mask"
)

const (
	// maxMessage bounds one message to the step runner: a job.
	maxMessage = 64 << 20
	// maxAnswer bounds one message from the step runner: a piece of output or of a trace, or the state of a step.
	// GitLab's step runners keep to this limit too: it is gRPC's default.
	maxAnswer = 4 << 20
	// window is how many bytes of a stream the step runner may send before they are read.
	window = 1 << 20
	// maxHeaders bounds the metadata of an answer. An error may quote the job.
	maxHeaders = 4 << 20
	// maxText bounds a message about a job, in bytes: the caller may keep many.
	maxText = 4 << 10
	// pingAfter is how long the step runner may be silent before it is pinged. pingTimeout is how long the answer may
	// take before the bridge counts as broken.
	pingAfter, pingTimeout = 30 * time.Second, 30 * time.Second
	// gitlabPingAfter replaces pingAfter for GitLab's step runners: by default a gRPC server closes a connection that
	// pings more than once in five minutes (keepalive.EnforcementPolicy).
	gitlabPingAfter = 6 * time.Minute

	defaultGrace = 10 * time.Second
)

// Job is a build's work: a script or steps.
type Job struct {
	// Job is the job's text and its options, which travel to the step runner in one message: never on a command line,
	// and never in the environment of the step runner. A zero Grace is 10s. GitLab's step runners have a grace of their
	// own; with them it only bounds the wait for the job's end. Options that they do not know are a RequestError.
	// Execute does not change it. Required.
	*pb.Job
	// ID names the job within its step runner: 1 to 256 characters of A-Z a-z 0-9 . _ -. If empty, the build's ID. Each
	// job of a build needs an ID of its own: a stepmux runs no second job of an ID. Execute then returns the result of
	// the first one if both are the same, and a RequestError if they are not.
	ID string
	// WorkDir is the directory where steps run, relative to the login's home. If empty, a fresh directory that is
	// removed at the end.
	WorkDir string
	// Project is an archive that is unpacked into the work directory before the first step. CI_PROJECT_DIR is the
	// path of that directory. Project and Artifacts exclude WorkDir. May be nil.
	Project *files.Project
	// Overlays are archives that are unpacked over the Project, one after the other. They need a Project.
	Overlays []*files.Project
	// Artifacts are collected when the job has ended, even if it failed, and before Execute returns. A cancelled job
	// has none. If they cannot be collected, a job that had succeeded fails. May be nil.
	Artifacts *files.Artifacts
	// Services, if not nil, registers the job at the services for its actions. It is called when a step runner is there,
	// and again if the job begins on another VM. end is called before Execute returns. The error ends the build.
	Services func() (_ *Services, end func(), err error)
	// Caches, if not nil, returns the caches of the job. It is called when a step runner is there, before the Project is
	// unpacked, and again if the job begins on another VM. Archives to unpack need a Project. The error ends the build.
	Caches func(ctx context.Context) (files.Caches, error)
	// Stderr, if not nil, receives the job's stderr; the trace of Execute then receives only its stdout. GitLab's
	// step runners merge the two: with them a Stderr is a RequestError.
	Stderr io.Writer
	// Image is the digest of the container image in which the step runner runs, for the job's trace. May be empty.
	Image string
	// Containers describes the containers of the build to a job of a workflow: properties of its context job. May be nil.
	Containers map[string]any
	// Trace receives the job's trace, as JSON, once the job has ended for any reason, in one write after the other.
	// If a write takes longer than Config.LogTimeout, or the build ends during it, the trace is cut off and OnTrace
	// gets an error. If nil, no trace is made.
	Trace io.Writer
	// OnTrace is called once before Execute returns, if Trace is set: with nil if the trace was written completely,
	// otherwise with the reason. The error is ErrNoTrace if the step runner cannot make a trace. May be nil.
	OnTrace func(error)
	// OnStep is called for each change of a step, from one goroutine. GitLab's step runners do not report changes.
	// May be nil.
	OnStep func(StepEvent)
	// OnOutputs is called once before Execute returns, if the step runner reports the job's end: with the outputs of the
	// job's last step, and the names, sorted, of those that contain secrets and stay on the VM. If they are more than
	// 1000, or have more than 1 MiB, it gets none, and a job that had succeeded fails. They are untrusted text. A step
	// runner that cannot report outputs refuses the job. May be nil.
	OnOutputs func(values map[string]string, masked []string)
	// Resumed means that another process may have delivered the job already. The trace of Execute is then a
	// [buildlog.Log] with the state of the log there, and the output continues where that stopped. A job that is
	// delivered twice runs once. Needs Config.Attach.
	Resumed bool
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

// Result is the outcome of a job, as the step runner reports it.
type Result struct {
	Status   Status
	ExitCode int    // of the step that failed; 0 if no step did
	Message  string // why it did not succeed
	TimedOut bool   // the job's Timeout ended it
	System   bool   // the VM or the step runner failed, not the steps; GitLab's step runners never set it
	// NothingStarted means that no command of the job was started, for sure. Only a stepmux reports it.
	NothingStarted bool
	// ServerFailed means that a step failed because of a server or the network path to it: System then says
	// nothing about the VM. Only a stepmux reports it.
	ServerFailed bool
}

// Execute runs job in the step runner that Connect started. It writes the job's stdout to trace as it arrives, and
// its stderr too unless job.Stderr is set; a trace that is not a [buildlog.Log] is wrapped in one. If trace is nil, the
// output is discarded. Execute returns when the job has ended and all its output is delivered.
//
// When ctx ends the job is cancelled (SIGTERM, its grace, SIGKILL). Execute still delivers the job's last output,
// then returns ctx.Err(). If the step runner does not answer, that takes the grace and twenty seconds at most. If ctx
// ends after the step runner has reported the job's end, the Result stays the same: the delivery of output and trace
// continues, for at most the grace and ten seconds. If a bridge breaks, another is opened and the output continues
// where it stopped.
//
// The Result is valid exactly if the error is nil: the step runner has then reported the job's end. Otherwise the
// error is ctx.Err(), a [*RequestError], a [*buildlog.Error], or the reason why the build's life ended: a
// [*ServeError], a [*mux.ConnError], a [*relay.Error] or ErrClosed. Any other error means that the step runner gave no
// valid answer for a long time. If the step runner did not get the job, for sure, errors.Is finds [ErrUndelivered].
// Close ends a job that may still run.
func (c *Connector) Execute(ctx context.Context, job Job, trace io.Writer) (Result, error) {
	timeout, grace := job.GetTimeout().AsDuration(), job.GetGrace().AsDuration()
	switch {
	case job.Job == nil:
		return Result{}, &RequestError{Message: "the job has neither steps nor a script"}
	case len(job.Steps) > 0 && job.Script != "":
		return Result{}, &RequestError{Message: "the job has both steps and a script"}
	case job.WorkDir != "" && job.hasFiles():
		return Result{}, &RequestError{Message: "the job has a work directory, and a project or artifacts: these have " +
			"a directory of their own"}
	case job.Project == nil && len(job.Overlays) > 0:
		return Result{}, &RequestError{Message: "the job has archives to unpack over a project, and no project"}
	case min(timeout, grace) < 0:
		return Result{}, &RequestError{Message: fmt.Sprintf("the job's timeout is %v, its grace %v: neither may be negative",
			timeout, grace)}
	}
	b, connected := c.current()
	if b == nil || !connected || b.serve == nil || !b.serve.ready.Load() {
		return Result{}, errors.New("connector: Execute without a Connect that succeeded")
	}
	job.ID = cmp.Or(job.ID, c.cfg.BuildID)
	job.Job = job.With(&pb.Job{
		Grace: durationpb.New(cmp.Or(grace, defaultGrace)), Outputs: job.OnOutputs != nil,
	})
	traced := errors.New("the job ended before its trace was written")
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
	stderr := log
	if job.Stderr != nil {
		var closeStderr func(context.Context)
		stderr, closeStderr = buildlog.Of(job.Stderr, c.cfg.LogTimeout, log)
		defer closeStderr(calls)
		defer stderr.OnFailure(end)()
	}

	client, done, err := b.client()
	if err != nil {
		return Result{}, undelivered(ctx, job, err)
	}
	defer done()
	var result Result
	stays := b.program.Kind == program.StepRunner // it is not known what that has done
	result, traced, err = b.execute(ctx, calls, end, client, job, log, stderr, &stays)
	if err != nil && calls.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = context.Cause(calls)
	}
	if err == nil && result.System && result.Status == Cancelled {
		if err = b.relayEnd(ctx); err != nil {
			result = Result{}
		}
	}
	result.Message = termtext.Cut(result.Message, maxText)
	if err = shortened(err); err != nil && !stays {
		err = undelivered(ctx, job, err)
	}
	return result, err
}

// relayPatience is how long the end of a relay may take to be known after that of its step runners.
const relayPatience = time.Second

// relayEnd returns why the build's relay has ended, or nil if it has not. The step runner ends with its relay, and may
// have the last word: that it is shutting down.
func (b *build) relayEnd(ctx context.Context) error {
	if b.relay == nil {
		return nil
	}
	timer := time.NewTimer(relayPatience)
	defer timer.Stop()
	select {
	case <-b.relay.Done():
		return b.relay.Err()
	case <-ctx.Done():
	case <-timer.C:
	}
	return nil
}

// undelivered marks err, of a job that was not sent, unless the job itself or its caller has caused it.
func undelivered(ctx context.Context, job Job, err error) error {
	_, refused := errors.AsType[*RequestError](err)
	_, log := errors.AsType[*buildlog.Error](err)
	if refused || log || ctx.Err() != nil || job.Resumed || errors.Is(err, ErrClosed) {
		return err
	}
	return undeliveredError{err}
}

// shortened returns err with at most maxText bytes of text from the VM.
func shortened(err error) error {
	if told, ok := status.FromError(err); ok && len(told.Message()) > maxText {
		return status.Error(told.Code(), termtext.Cut(told.Message(), maxText))
	}
	return err
}

// hasFiles reports whether files are brought to the job, or taken from it.
func (j *Job) hasFiles() bool { return j.Project != nil || j.Artifacts != nil || j.Caches != nil }

// execute runs job through the service of the VM's step runner. end ends calls, the context of all its gRPC calls. It
// sets stays once the step runner may have the job, or if another step runner would fail it, too.
func (b *build) execute(
	ctx, calls context.Context, end context.CancelCauseFunc, client *grpc.ClientConn, job Job, log, stderr *buildlog.Log,
	stays *bool,
) (result Result, traceErr, err error) {
	if b.program.Kind == program.StepRunner {
		if job.Services != nil {
			err = &RequestError{Message: fmt.Sprintf("%v has no services for actions: use a stepmux on the VM", b.program)}
			return Result{}, err, err
		}
		if job.hasFiles() {
			err = &RequestError{Message: fmt.Sprintf("%v takes no project and gives no artifacts: use a stepmux on the VM",
				b.program)}
			return Result{}, err, err
		}
		job.WorkDir = cmp.Or(job.WorkDir, workDir(b.serve.socket))
		e := &gitlabExecution{rpc: runnerproto.NewStepRunnerClient(client), job: job, log: log}
		b.c.isolated(program.Isolation{Level: vmconfig.Off, Reason: fmt.Sprintf("%v has none", b.program)})
		result, err = e.run(ctx, calls, end)
		return result, ErrNoTrace, err
	}
	traceTimeout := cmp.Or(b.c.cfg.LogTimeout, buildlog.DefaultTimeout)
	e := &execution{
		rpc: pb.NewStepRunnerClient(client), job: job, log: log, stderr: stderr, traceTimeout: traceTimeout,
		resume: b.program.Linger, patience: b.patience(), stays: stays,
	}
	if !job.Resumed {
		log.Begin()
		stderr.Begin()
		_ = hide(new(mask.Set), job.Variables, stderr.Remarks(b.c.closing)) // the step runner refuses more than it can mask
	}
	var caches files.Caches
	if job.Caches != nil {
		if caches, err = job.Caches(ctx); err != nil {
			return Result{}, err, err
		}
		if job.Project == nil && len(caches.Before) > 0 {
			err = &RequestError{Message: "the job has caches to unpack over a project, and no project"}
			return Result{}, err, err
		}
		e.job.Overlays = slices.Concat(caches.Before, job.Overlays)
	}
	if job.hasFiles() {
		if err := e.place(ctx, calls, pb.NewFilesClient(client), &b.c.cfg.VM.files, log.Remarks(b.c.closing)); err != nil {
			return Result{}, err, err
		}
	}
	if job.Services != nil {
		services, unregister, err := job.Services()
		if err != nil {
			return Result{}, err, err
		}
		defer unregister()
		stop, err := e.serveServices(ctx, calls, pb.NewReachClient(client), services)
		if err != nil {
			return Result{}, err, err
		}
		defer stop()
	}
	// A job that was cancelled before may have ended and be forgotten. Delivering it again would run it again.
	if !job.Resumed || ctx.Err() == nil {
		if err := e.submit(ctx, calls); err != nil {
			return Result{}, err, err
		}
	}
	result, traceErr, err = e.follow(ctx, calls, end)
	if err == nil && job.Artifacts != nil && result.Status != Cancelled && !result.neverBegan() {
		err = e.collect(ctx, calls, pb.NewFilesClient(client), result, log.Remarks(b.c.closing))
	}
	if err == nil && len(caches.After) > 0 && result.Status != Cancelled && !result.TimedOut && !result.neverBegan() {
		err = e.collectCaches(ctx, calls, pb.NewFilesClient(client), caches.After, result, log.Remarks(b.c.closing))
	}
	if e.last != nil {
		b.c.isolated(isolationOf(e.last))
		b.c.mu.Lock()
		b.c.usage = usageOf(e.last)
		b.c.mu.Unlock()
	}
	return result, traceErr, err
}

// newClient returns a gRPC client over this build's bridges. The caller calls done at the end.
func (b *build) newClient() (client *grpc.ClientConn, done func(), err error) {
	ping := keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}
	if b.program.Kind == program.StepRunner {
		ping.Time = gitlabPingAfter
	}
	again := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second}
	if b.c.linger != nil {
		again.MaxDelay = lingerPause
	}
	ended := new(atomic.Bool)
	client, err = grpc.NewClient("passthrough:///step-runner",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the bridge runs inside SSH
		b.c.withCredentials(),
		//nolint:contextcheck // a bridge's life is the build's
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			bridge, err := b.bridge()
			if err != nil {
				return nil, err
			}
			return &fewWrites{Conn: bridge, ended: ended}, nil
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(maxMessage),
			grpc.ForceCodecV2(leanCodec{encoding.GetCodecV2(grpcproto.Name)}),
			grpc.WaitForReady(b.c.linger != nil)), // while the link is away
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(4*window), // bounds the speed, not the memory: credit is returned on receipt
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: b.patience()}),
		// A frozen serve keeps its socket open. Only its silence shows that it is frozen.
		grpc.WithKeepaliveParams(ping),
		grpc.WithReadBufferSize(16<<10), // one frame (RFC 9113, section 4.2); small, because many builds are idle
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to step runner: %w", err)
	}
	return client, func() {
		ended.Store(true)
		client.Close()
	}, nil
}
