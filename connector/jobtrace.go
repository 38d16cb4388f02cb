package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// maxTrace is the largest trace that is taken, in bytes.
const maxTrace = 128 << 20

// ErrNoTrace tells that the step runner cannot make a trace of a job: it is another program, or an older one.
var ErrNoTrace = errors.New("the step runner on the VM makes no traces; install a newer stepmux there")

// fetchTrace delivers the trace of the job, which has ended. A stream that broke goes on where it was.
func (e *execution) fetchTrace(ctx context.Context) error {
	var offset int64
	err := retry(ctx, func() (progress bool, err error) {
		stream, err := e.rpc.Trace(ctx, &pb.TraceRequest{Id: e.job.ID, Offset: offset})
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
			if offset += int64(len(msg.GetData())); offset > maxTrace {
				return progress, fmt.Errorf("the trace has more than %d bytes", maxTrace)
			}
			if err := e.writeTrace(ctx, msg.GetData()); err != nil {
				return progress, err
			}
			progress = true
		}
	})
	if status.Code(err) == codes.Unimplemented {
		return ErrNoTrace
	}
	if err != nil {
		return fmt.Errorf("fetch trace: %w", err)
	}
	return nil
}

// writeTrace writes p to the job's Trace. It waits for that no longer than for a log, nor than ctx: what does not
// return stays behind with its goroutine.
func (e *execution) writeTrace(ctx context.Context, p []byte) error {
	wrote := make(chan error, 1)
	go func() {
		_, err := e.job.Trace.Write(p)
		wrote <- err
	}()
	timer := time.NewTimer(e.patience)
	defer timer.Stop()
	select {
	case err := <-wrote:
		return err
	case <-timer.C:
		return fmt.Errorf("what it is written to took nothing for %v", e.patience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
