package connector

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// maxTrace bounds a trace, in bytes.
const maxTrace = 128 << 20

// fetchTrace delivers the trace of a job that has ended. After a broken call it continues where it stopped.
func (e *execution) fetchTrace(ctx context.Context) error {
	var offset int64
	err := retryFor(ctx, e.patience, func() (progress bool, err error) {
		stream, err := e.rpc.Trace(ctx, &pb.TraceRequest{Id: e.job.ID, Offset: offset})
		if err != nil {
			return false, err
		}
		before := offset
		err = receive(stream, func(msg *pb.TraceResponse) error {
			if offset += int64(len(msg.GetData())); offset > maxTrace {
				return fmt.Errorf("the trace has more than %d bytes", maxTrace)
			}
			return e.writeTrace(ctx, msg.GetData())
		})
		return offset > before, err
	})
	if status.Code(err) == codes.Unimplemented {
		return ErrNoTrace
	}
	if err != nil {
		return fmt.Errorf("fetch trace: %w", err)
	}
	return nil
}

// writeTrace writes p to the job's Trace. It waits no longer than traceTimeout and ctx. If the Writer does not
// return, its goroutine stays behind.
func (e *execution) writeTrace(ctx context.Context, p []byte) error {
	wrote := make(chan error, 1)
	go func() {
		_, err := e.job.Trace.Write(p)
		wrote <- err
	}()
	timer := time.NewTimer(e.traceTimeout)
	defer timer.Stop()
	select {
	case err := <-wrote:
		return err
	case <-timer.C:
		return fmt.Errorf("the trace's writer took nothing for %v", e.traceTimeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
