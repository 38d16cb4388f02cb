package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/internal/wire"
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
	// pingAfter is how long the step runner may be silent before it is asked for an answer, and pingTimeout how long
	// that may take, before its bridge counts as broken.
	pingAfter, pingTimeout = 30 * time.Second, 30 * time.Second
	// gitlabPingAfter is pingAfter for another step runner: by its default policy a gRPC server closes a connection with
	// more than one ping in five minutes (keepalive.EnforcementPolicy).
	gitlabPingAfter = 6 * time.Minute

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
	// StepsFile is the name that messages give Steps, before a line and a column. May be empty.
	StepsFile string
	// Env is the environment of the steps. It travels in the request, never on a command line and
	// never in the environment of the step runner.
	Env map[string]string
	// Vars are the job's variables. They travel as Env does.
	Vars []Variable
	// WorkDir is where steps run, relative to the login's home. If empty, a fresh directory that is
	// removed at the end.
	WorkDir string
	// Project is the archive whose files the work directory has when the first step runs; CI_PROJECT_DIR tells where that
	// is. Exclusive with WorkDir, as are Artifacts. May be nil.
	Project *files.Project
	// Artifacts come back when the job has ended, also if it failed: Execute returns after that. A job that was cancelled
	// has none. If they cannot be had that fails a job that has succeeded. May be nil.
	Artifacts *files.Artifacts
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
	// MayFail names steps of the job that may fail: it goes on as if they had succeeded.
	MayFail []string
	// Stderr, if not nil, receives the job's stderr, as the trace of Execute does its stdout. GitLab's step runners do not
	// tell the two apart: for them it is a RequestError.
	Stderr io.Writer
	// Image is the image of the container in which the step runner is, by its digest, for the trace. May be empty.
	Image string
	// Trace gets the job's trace, as JSON, once the job has ended, however it did, in one write after the other. A
	// write that takes longer than Config.LogTimeout, or than the build lives, is given up: then the trace ends there,
	// and OnTrace gets an error. May be nil: then no trace is made.
	Trace io.Writer
	// OnTrace is called once before Execute returns, if there is a Trace: with nil if all of it was written, else with
	// the reason. The error is ErrNoTrace if the step runner cannot make a trace. May be nil.
	OnTrace func(error)
	// OnStep is called for each change of a step, from one goroutine. GitLab's step runners report no changes. May be nil.
	OnStep func(StepEvent)
	// Resumed says that another process may have delivered the job already, and that the trace of Execute is a
	// [buildlog.Log] with the state of the log there: the output goes on where it stopped. The step runner takes a job
	// that is delivered twice for one. Needs Config.Attach.
	Resumed bool
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

// Execute runs job in the step runner that Connect started and writes its stdout, and its stderr unless job.Stderr
// takes it, to trace as they come, through a [buildlog.Log] unless it is one. It returns when the job has ended and all
// its output is delivered.
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
	stderr := log
	if job.Stderr != nil {
		var closeStderr func(context.Context)
		stderr, closeStderr = buildlog.Of(job.Stderr, c.cfg.LogTimeout)
		defer closeStderr(calls)
		defer stderr.OnFailure(end)()
	}

	client, done, err := b.client()
	if err != nil {
		return Result{}, err
	}
	defer done()
	var result Result
	result, traced, err = b.execute(ctx, calls, end, client, job, log, stderr)
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
	ctx, calls context.Context, end context.CancelCauseFunc, client *grpc.ClientConn, job Job, log, stderr *buildlog.Log,
) (result Result, traceErr, err error) {
	if b.program.Kind == program.StepRunner {
		if job.Project != nil || job.Artifacts != nil {
			err = &RequestError{Message: fmt.Sprintf("%v takes no project and gives no artifacts: use a stepmux on the VM",
				b.program)}
			return Result{}, err, err
		}
		job.WorkDir = cmp.Or(job.WorkDir, workDir(b.serve.socket))
		e := &gitlabExecution{rpc: runnerproto.NewStepRunnerClient(client), job: job, log: log}
		b.c.isolated(program.Isolation{Level: wire.IsolationOff, Reason: fmt.Sprintf("%v has none", b.program)})
		result, err = e.run(ctx, calls, end)
		return result, ErrNoTrace, err
	}
	traceTimeout := cmp.Or(b.c.cfg.LogTimeout, buildlog.DefaultTimeout)
	e := &execution{
		rpc: pb.NewStepRunnerClient(client), job: job, log: log, stderr: stderr, traceTimeout: traceTimeout,
		resume: b.program.Linger, patience: b.patience(),
	}
	if !job.Resumed {
		log.Begin()
		stderr.Begin()
	}
	if job.Project != nil || job.Artifacts != nil {
		if err := e.place(ctx, calls, pb.NewFilesClient(client), &b.c.cfg.VM.files); err != nil {
			return Result{}, err, err
		}
	}
	// A job that was cancelled before may have ended and be forgotten: it must not be delivered again.
	if !job.Resumed || ctx.Err() == nil {
		if err := e.submit(ctx, calls); err != nil {
			return Result{}, err, err
		}
	}
	result, traceErr, err = e.follow(ctx, calls, end)
	if err == nil && job.Artifacts != nil && result.Status != Cancelled {
		err = e.collect(ctx, calls, pb.NewFilesClient(client), result, log.Remarks(b.c.closing))
	}
	if e.last != nil {
		b.c.isolated(isolationOf(e.last))
		b.c.mu.Lock()
		b.c.usage = usageOf(e.last)
		b.c.mu.Unlock()
	}
	return result, traceErr, err
}

// newClient returns a gRPC client over this build's bridges.
func (b *build) newClient() (*grpc.ClientConn, error) {
	ping := keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}
	if b.program.Kind == program.StepRunner {
		ping.Time = gitlabPingAfter
	}
	again := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second}
	if b.c.linger != nil {
		again.MaxDelay = lingerPause
	}
	client, err := grpc.NewClient("passthrough:///step-runner",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the bridge runs inside SSH
		b.c.withCredentials(),
		//nolint:contextcheck // a bridge's life is the build's
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return b.bridge() }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(maxMessage),
			grpc.ForceCodecV2(leanCodec{encoding.GetCodecV2(grpcproto.Name)}),
			grpc.WaitForReady(b.c.linger != nil)), // while the link is away
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(4*window), // given back on receipt, so it bounds no memory, only the speed
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: b.patience()}),
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
