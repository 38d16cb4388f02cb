package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// closeLimit bounds the wait for a step runner to forget a job that has ended.
const closeLimit = 5 * time.Second

// managerExecution is one call of Execute on a step runner that has the service which the manager of GitLab
// Runner calls, and not ours.
type managerExecution struct {
	rpc    runnerproto.StepRunnerClient
	job    Job
	log    *Log
	offset int64 // of the job's log that is delivered
}

// run runs the job. It ends with ctx, after a cancellation, or with the job's own timeout.
func (e *managerExecution) run(ctx, calls context.Context, end context.CancelCauseFunc) (Result, error) {
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
		return e.discreet(err)
	}, e.cancel)
	var last *runnerproto.Status
	late := limited.Err() != nil
	if err == nil {
		last, err = e.follow(limited, calls, end)
		late = limited.Err() != nil // what the log takes after that is not the job's time
		if err == nil {
			err = e.log.flush(calls)
		}
		e.forget(calls)
	}
	switch {
	case ctx.Err() == nil && late && calls.Err() == nil && last.GetStatus() != runnerproto.Status_success:
		return Result{Status: Failed, TimedOut: true, Message: fmt.Sprintf("the job took longer than %v", e.job.Timeout)}, nil
	case err != nil:
		return Result{}, err
	}
	return managerResult(last), nil
}

// request returns the job as this service takes it.
func (e *managerExecution) request() (*runnerproto.RunRequest, error) {
	text, err := managerSteps(e.job)
	if err != nil {
		return nil, err
	}
	return &runnerproto.RunRequest{
		Id:      e.job.ID,
		WorkDir: e.job.WorkDir,
		Env:     e.job.Env,
		Job:     &runnerproto.Job{BuildDir: e.job.WorkDir, Variables: e.job.managerVariables()},
		Steps:   text,
	}, nil
}

// discreet returns err without the values of the job's environment and variables: there are step runners that answer a
// request they refuse with all of it.
func (e *managerExecution) discreet(err error) error {
	const least, most = 4, 400 // a shorter value says nothing, a longer message nothing more
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

// follow delivers the job's log and returns how it ended. When ctx ends the job is cancelled.
func (e *managerExecution) follow(ctx, calls context.Context, end context.CancelCauseFunc) (last *runnerproto.Status, err error) {
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

// followLogs delivers the log from where it is.
func (e *managerExecution) followLogs(ctx context.Context) (progress bool, err error) {
	stream, err := e.rpc.FollowLogs(ctx, &runnerproto.FollowLogsRequest{Id: e.job.ID, Offset: e.offset})
	if err != nil {
		return false, err
	}
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return progress, nil
		}
		if err != nil {
			return progress, err
		}
		if _, err := e.log.write(ctx.Done(), msg.GetData()); err != nil {
			if ctx.Err() != nil {
				return progress, context.Cause(ctx)
			}
			return progress, &LogError{err}
		}
		progress = true
		e.offset += int64(len(msg.GetData()))
	}
}

// finalStatus returns how a job ended whose log has. That it runs on is an error of which another attempt
// may see the end.
func (e *managerExecution) finalStatus(ctx context.Context) (*runnerproto.Status, error) {
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

// cancel asks for the job's end. Whether it was heard shows in what follows.
func (e *managerExecution) cancel(calls context.Context) {
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

// forget lets the step runner remove what it keeps of the job. What it does not, goes with its directory.
func (e *managerExecution) forget(calls context.Context) {
	calls, stop := context.WithTimeout(calls, closeLimit)
	defer stop()
	_, _ = e.rpc.Close(calls, &runnerproto.CloseRequest{Id: e.job.ID})
}

// managerResult translates the step runner's word. A status that is not known is not success.
func managerResult(s *runnerproto.Status) Result {
	r := Result{Status: Failed, Message: s.GetMessage()}
	switch s.GetStatus() { //nolint:exhaustive // all others are no success
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

// managerSteps returns the job's steps as this service takes them: two YAML documents, of which the first is
// a specification without inputs.
func managerSteps(job Job) (string, error) {
	if job.Steps == nil {
		if !utf8.ValidString(job.Script) {
			return "", &RequestError{Message: "the script is not UTF-8, and this VM's step runner takes nothing else"}
		}
		return "{}\n---\nrun:\n- name: script\n  script: " + yamlString(job.Script) + "\n", nil
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

// yamlString returns s as a YAML double-quoted scalar on one line (YAML 1.2.2, section 7.3.1), in ASCII.
func yamlString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r >= ' ' && r <= '~':
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		default:
			fmt.Fprintf(&b, `\U%08X`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
