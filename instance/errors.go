package instance

import (
	"context"
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// ErrCleanedUp is the cause of an Executor's errors after Cleanup.
var ErrCleanedUp = errors.New("the build was cleaned up")

// ErrUnknown is wrapped by errors about an instance, or labels, that the group does not have.
var ErrUnknown = errors.New("there is no instance")

// ErrElsewhere is wrapped by the error of a build whose instance now belongs to another group; see Group.Share. The
// build may continue there.
var ErrElsewhere error = outOfServiceError(Elsewhere)

func unknown(id string) error { return fmt.Errorf("%w %q", ErrUnknown, id) }

// FailureReason classifies a failed build, in GitLab's terms.
type FailureReason string

// The reasons.
const (
	// ScriptFailure: the build's own steps failed.
	ScriptFailure FailureReason = "script_failure"
	// RunnerSystemFailure: the machine, the connection or the step runner failed.
	RunnerSystemFailure FailureReason = "runner_system_failure"
	// ConfigurationError: the job cannot be run as it is written.
	ConfigurationError FailureReason = "runner_configuration_error"
	// JobCanceled: the build was stopped on request.
	JobCanceled FailureReason = "job_canceled"
	// JobExecutionTimeout: the build exceeded its timeout.
	JobExecutionTimeout FailureReason = "job_execution_timeout"
)

// BuildError reports why a build did not succeed. Every error of an Executor is one.
type BuildError struct {
	Reason FailureReason
	// ExitCode is the exit code of the step that failed, or of a steps serve that did not start. It is 0 if the
	// failure was not caused by the exit code of a process; 0 never means success.
	ExitCode int
	// Elsewhere means that the instance has failed the job before its first command, and that another may take it: call
	// Connect again.
	Elsewhere bool
	// Late means that the time of the build was up before its step runner had started.
	Late bool
	// Err is the cause.
	Err error
}

func (e *BuildError) Error() string { return fmt.Sprintf("%s: %v", e.Reason, e.Err) }

// Unwrap returns the cause.
func (e *BuildError) Unwrap() error { return e.Err }

// classify turns err, an error during ctx of the build, into a *BuildError. It returns nil for nil.
func classify(ctx context.Context, err error) error {
	var (
		built   *BuildError
		lost    *mux.ConnError
		serve   *connector.ServeError
		request *connector.RequestError
	)
	failed := &BuildError{Reason: RunnerSystemFailure, Err: err}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &built):
		return err
	case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
		return endOf(ctx)
	case errors.As(err, &lost): // first, because it may be the cause of the others
	case errors.As(err, &serve):
		failed.ExitCode = max(serve.ExitCode, 0)
	case errors.As(err, &request):
		failed.Reason = ConfigurationError
	}
	return failed
}

// notBegun returns the error of a build whose ctx ended before its step runner had started. err is what the build then
// waited for. A deadline is no timeout of the job: no step of it has begun.
func notBegun(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(cause, context.DeadlineExceeded) {
		return ctx.Err()
	}
	if !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return &BuildError{Reason: RunnerSystemFailure, Late: true, Err: fmt.Errorf("no step has begun: %w", err)}
}

// endOf returns the error of a build whose ctx has ended.
func endOf(ctx context.Context) error {
	failed := &BuildError{Reason: JobCanceled, Err: context.Cause(ctx)}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(failed.Err, context.DeadlineExceeded) {
		failed.Reason = JobExecutionTimeout
	}
	return failed
}

// outcome turns a step runner's result into the build's.
func outcome(r connector.Result) error {
	failed := &BuildError{Err: errors.New(r.Message)}
	switch {
	case r.Status == connector.Succeeded:
		return nil
	case r.TimedOut:
		failed.Reason = JobExecutionTimeout
	case r.System:
		failed.Reason = RunnerSystemFailure
	case r.Status == connector.Cancelled:
		failed.Reason = JobCanceled
	default:
		failed.Reason, failed.ExitCode = ScriptFailure, r.ExitCode
	}
	return failed
}

// CloseReason returns a short label for the reason why a connection left service: "idle", "age", "shutdown",
// "reconfigured", "not needed", the operation that found it dead ("keepalive", "read", "write"), or "other".
func CloseReason(cause error) string {
	died := (*mux.ConnError)(nil)
	var out outOfServiceError
	switch {
	case errors.Is(cause, pool.ErrIdle):
		return "idle"
	case errors.Is(cause, pool.ErrExpired):
		return "age"
	case errors.Is(cause, pool.ErrClosed):
		return "shutdown"
	case errors.Is(cause, errChanged):
		return "reconfigured"
	case errors.As(cause, &out), errors.Is(cause, errNotNeeded):
		return "not needed"
	case errors.As(cause, &died) && (died.Op == "keepalive" || died.Op == "read" || died.Op == "write"):
		return died.Op
	default:
		return "other"
	}
}
