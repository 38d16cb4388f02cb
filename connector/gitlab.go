package connector

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// closeLimit bounds the wait for a step runner to forget a job that has ended.
const closeLimit = 5 * time.Second

// gitlabExecution is one call of Execute on GitLab's step runner: it has the service that the manager of GitLab Runner
// calls, and not ours.
type gitlabExecution struct {
	rpc    runnerproto.StepRunnerClient
	job    Job
	log    *buildlog.Log
	offset int64 // of the job's log that is delivered
}

// run runs the job. It ends with ctx, after a cancellation, or with the job's own timeout.
func (e *gitlabExecution) run(ctx, calls context.Context, end context.CancelCauseFunc) (Result, error) {
	req, err := e.request()
	if err != nil {
		return Result{}, err
	}
	limited := ctx
	if e.job.Timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, e.job.Timeout)
		defer cancel()
	}
	err = deliver(limited, calls, req, func(ctx context.Context) error {
		_, err := e.rpc.Run(ctx, req)
		return e.redact(err)
	}, e.cancel)
	var last *runnerproto.Status
	late := limited.Err() != nil
	if err == nil {
		last, err = e.follow(limited, calls, end)
		late = limited.Err() != nil // the time that the log takes after that is not the job's
		if err == nil {
			err = e.log.Flush(calls)
		}
		e.forget(calls)
	}
	switch {
	case ctx.Err() == nil && late && calls.Err() == nil && last.GetStatus() != runnerproto.Status_success:
		message := fmt.Sprintf("the job took longer than %v", e.job.Timeout)
		return Result{Status: Failed, TimedOut: true, Message: message}, nil
	case err != nil:
		return Result{}, err
	}
	return gitlabResult(last), nil
}

// request returns the job as this service takes it.
func (e *gitlabExecution) request() (*runnerproto.RunRequest, error) {
	text, err := gitlabSteps(e.job)
	if err != nil {
		return nil, err
	}
	job := &runnerproto.Job{BuildDir: e.job.WorkDir}
	for _, v := range e.job.Vars {
		job.Variables = append(job.Variables,
			&runnerproto.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked})
	}
	return &runnerproto.RunRequest{
		Id: e.job.ID, WorkDir: e.job.WorkDir, Env: e.job.Env, Job: job, Steps: text,
	}, nil
}

// redact returns err without the values of the job's environment and variables: some step runners quote all of a
// request that they refuse.
func (e *gitlabExecution) redact(err error) error {
	const least, most = 4, 400 // bytes of a value that is replaced, and of the message
	if err == nil {
		return nil
	}
	told := status.Convert(err)
	text := told.Message()
	for key, value := range e.job.Env {
		if len(value) >= least {
			text = strings.ReplaceAll(text, value, "["+key+"]")
		}
	}
	for _, v := range e.job.Vars {
		if len(v.Value) >= least {
			text = strings.ReplaceAll(text, v.Value, "["+v.Key+"]")
		}
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return status.Error(told.Code(), text)
}

// follow delivers the job's log and returns its final status. When ctx ends the job is cancelled.
func (e *gitlabExecution) follow(
	ctx, calls context.Context, end context.CancelCauseFunc,
) (last *runnerproto.Status, err error) {
	defer cancelAfter(ctx, e.job.Grace, func() { e.cancel(calls) }, end)()
	err = retry(calls, func() (progress bool, err error) {
		if progress, err = e.followLogs(calls); err != nil {
			return progress, err
		}
		last, err = e.finalStatus(calls)
		if status.Code(err) == codes.NotFound && ctx.Err() != nil {
			err = nil // a step runner without Cancel forgets the job
		}
		return progress, err
	})
	return last, err
}

// followLogs delivers the rest of the log.
func (e *gitlabExecution) followLogs(ctx context.Context) (progress bool, err error) {
	stream, err := e.rpc.FollowLogs(ctx, &runnerproto.FollowLogsRequest{Id: e.job.ID, Offset: e.offset})
	if err != nil {
		return false, err
	}
	return receive(stream, func(msg *runnerproto.FollowLogsResponse) error {
		if err := writeLog(ctx, e.log, msg.GetData()); err != nil {
			return err
		}
		e.offset += int64(len(msg.GetData()))
		return nil
	})
}

// finalStatus returns the status of a job whose log has ended. For a job that still runs it returns an error after
// which retry asks again.
func (e *gitlabExecution) finalStatus(ctx context.Context) (*runnerproto.Status, error) {
	resp, err := e.rpc.Status(ctx, &runnerproto.StatusRequest{Id: e.job.ID})
	if err != nil {
		return nil, err
	}
	for _, s := range resp.GetJobs() {
		switch {
		case s.GetId() != e.job.ID:
		case s.GetStatus() == runnerproto.Status_running:
			return nil, status.Error(codes.Unavailable, "the step runner ended the log of a job that runs on")
		default:
			return s, nil
		}
	}
	return nil, status.Error(codes.NotFound, "the step runner does not know the job any more")
}

// cancel asks for the job's end. The job's status then shows the effect.
func (e *gitlabExecution) cancel(calls context.Context) {
	calls, stop := context.WithTimeout(calls, cancelLimit)
	defer stop()
	_ = retry(calls, func() (bool, error) {
		_, err := e.rpc.Cancel(calls, &runnerproto.CancelRequest{Id: e.job.ID})
		if status.Code(err) == codes.Unimplemented {
			_, err = e.rpc.Close(calls, &runnerproto.CloseRequest{Id: e.job.ID})
		}
		return false, err
	})
}

// forget lets the step runner remove the job's data. Close removes the rest with its directory.
func (e *gitlabExecution) forget(calls context.Context) {
	calls, stop := context.WithTimeout(calls, closeLimit)
	defer stop()
	_, _ = e.rpc.Close(calls, &runnerproto.CloseRequest{Id: e.job.ID})
}

// gitlabResult translates the job's final status. A status that is not known is not success.
func gitlabResult(s *runnerproto.Status) Result {
	r := Result{Status: Failed, Message: s.GetMessage()}
	switch s.GetStatus() { //nolint:exhaustive // no other is success
	case runnerproto.Status_success:
		return Result{Status: Succeeded}
	case runnerproto.Status_cancelled:
		r.Status = Cancelled
	default:
		r.ExitCode = exitStatusIn(r.Message)
	}
	if r.Message == "" {
		r.Message = "the step runner did not say why"
	}
	return r
}

// exitStatusIn returns N of a message that ends in "exit status N", 0 for any other.
func exitStatusIn(message string) int {
	const words = "exit status "
	i := strings.LastIndex(message, words)
	if i < 0 {
		return 0
	}
	n, err := strconv.Atoi(message[i+len(words):])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// gitlabSteps returns the job's steps as this service takes them: two YAML documents, the first of them a
// specification without inputs.
func gitlabSteps(job Job) (string, error) {
	if job.Steps == nil {
		if !utf8.ValidString(job.Script) {
			return "", &RequestError{Message: "the script is not UTF-8, and this VM's step runner takes nothing else"}
		}
		// In ASCII each escape of a Go string is one of YAML's double-quoted scalars (YAML 1.2.2, section 5.7).
		return "{}\n---\nrun:\n- name: script\n  script: " + strconv.QuoteToASCII(job.Script) + "\n", nil
	}
	text := string(job.Steps)
	if !utf8.ValidString(text) {
		return "", &RequestError{Message: "the steps are not UTF-8"}
	}
	first, more := documents(text)
	switch {
	case more:
		return text, nil
	case first:
		return "{}\n" + text, nil
	default:
		return "{}\n---\n" + text, nil
	}
}

// documents reports whether a YAML text begins with the mark of a document, and whether it has a second one.
func documents(text string) (begins, more bool) {
	seen := false // something of the first document
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "---" || strings.HasPrefix(line, "--- "):
			if seen {
				return begins, true
			}
			begins, seen = true, true
		case line != "" && !strings.HasPrefix(strings.TrimLeft(line, " \t"), "#"):
			seen = true
		}
	}
	return begins, false
}
