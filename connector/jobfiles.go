package connector

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/files"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// place creates the job's work directory, with the files of its project and its overlays. If the job was delivered
// before, place returns the directory it has.
func (e *execution) place(
	ctx, calls context.Context, rpc pb.FilesClient, vm *files.VM, remarks *buildlog.Remarks,
) error {
	until, end := context.WithCancelCause(calls)
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	var dir string
	var err error
	after := 0
	for ; after <= len(e.job.Overlays) && err == nil; after++ {
		archive := e.job.Project
		if after > 0 {
			archive = e.job.Overlays[after-1]
		}
		if archive != nil && archive.Cache && archive.Unpacked == nil {
			its := *archive
			its.Unpacked = func(leftOut string) {
				if leftOut != "" {
					fmt.Fprintf(remarks, "cache: it is not restored: %s\n", leftOut)
				}
			}
			archive = &its
		}
		err = retryFor(until, e.patience, func() (progress bool, err error) {
			dir, progress, err = vm.Place(until, rpc, after, archive)
			return progress, err
		})
	}
	switch {
	case err == nil:
	case until.Err() != nil:
		return context.Cause(until)
	case status.Code(err) == codes.Unimplemented:
		return &RequestError{Message: "the step runner on the VM is too old for a project and for artifacts: install this " +
			"version there"}
	case status.Code(err) == codes.AlreadyExists && after > 1:
		return &RequestError{Message: "the step runner on the VM is too old for several archives in a build: install this " +
			"version there"}
	default:
		// Of the answers only that of a full disk is about the VM alone.
		*e.stays = status.Code(err) != codes.ResourceExhausted && !broken(err)
		return fmt.Errorf("bring the project to the VM: %w", plain(err))
	}
	e.job.WorkDir = dir
	e.job.Env = maps.Clone(e.job.Env)
	if e.job.Env == nil {
		e.job.Env = map[string]string{}
	}
	if _, given := e.job.Env["CI_PROJECT_DIR"]; !given {
		e.job.Env["CI_PROJECT_DIR"] = dir
	}
	return nil
}

// collect collects the job's artifacts. If that fails, a job that had succeeded fails with the error; for other jobs
// the error is a line in the log.
func (e *execution) collect(
	ctx, calls context.Context, rpc pb.FilesClient, result Result, remarks *buildlog.Remarks,
) error {
	wanted := *e.job.Artifacts
	if wanted.After != nil {
		if wanted.Paths = wanted.After(result.Status == Succeeded); len(wanted.Paths) == 0 {
			return nil
		}
	}
	until, end := context.WithCancelCause(calls)
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	arriving := wanted.Collect()
	defer arriving.Close()
	err := retryFor(until, e.patience, func() (bool, error) { return arriving.Receive(until, rpc) })
	if arriving.Note != "" {
		fmt.Fprintf(remarks, "artifacts: %s\n", arriving.Note)
	}
	if err == nil {
		err = arriving.Take(until)
	}
	if err != nil && until.Err() != nil {
		err = context.Cause(until)
	}
	if err != nil {
		err = &files.CollectError{Err: plain(err)}
		if result.Status != Succeeded {
			fmt.Fprintf(remarks, "%v\n", err)
			err = nil
		}
	}
	if flushErr := e.log.Flush(calls); err == nil {
		err = flushErr
	}
	return err
}

// collectCaches collects the job's caches. The error is that of the log, or of the end of a context.
func (e *execution) collectCaches(
	ctx, calls context.Context, rpc pb.FilesClient, caches []*files.Cache, result Result, remarks *buildlog.Remarks,
) error {
	until, end := context.WithCancelCause(calls)
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	for _, c := range caches {
		if c.When != nil && !c.When(result.Status == Succeeded) {
			continue
		}
		arriving := c.Collect()
		err := retryFor(until, e.patience, func() (bool, error) { return arriving.Receive(until, rpc) })
		if until.Err() != nil {
			arriving.Close()
			return context.Cause(until)
		}
		if err != nil {
			err = plain(err)
		}
		if arriving.Note != "" {
			fmt.Fprintf(remarks, "cache: %s\n", arriving.Note)
		}
		line := c.End(until, arriving, err)
		if arriving.Close(); line != "" {
			fmt.Fprintln(remarks, line)
		}
	}
	return e.log.Flush(calls)
}

// plain returns the text of a step runner's answer without the gRPC code.
func plain(err error) error {
	if told, ok := status.FromError(err); ok && !broken(err) {
		return errors.New(told.Message())
	}
	return err
}
