package bench

import (
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/internal/testing/liveheap"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// logLimit is how much of a job's output a step runner keeps, if it is not told otherwise.
const logLimit = 256 << 20

// benchmarkFollowIO measures the following of a big log by gRPC: over the socket itself, through the SSH library's
// own channel, and through each bridge. A log has its limit, so one is followed four times over to make a GiB; with
// -short it is a small one. The client's heap should not grow with the bytes it has read.
func benchmarkFollowIO(b *testing.B) {
	const parts = 4
	size := sizes([]int64{logLimit}, 1<<20)[0]
	v := newVM(b)
	s := newServeIn(b, v.tmp)
	id, err := s.start(b.Context(), fmt.Sprintf("head -c %d /dev/zero", size))
	require.NoError(b, err)
	require.NoError(b, s.readAll(b.Context(), id, size))

	var all []candidate
	missing(b, iocopyName, "it takes seconds, and control-master copies in a process, too")
	for _, w := range v.allWays(b) {
		if w.name == iocopyName {
			continue
		}
		client := &serve{StepRunnerClient: pb.NewStepRunnerClient(w.client(b, s.socket))}
		all = append(all, candidate{name: w.name, run: func(r *results) error {
			return r.follow(w.name, parts*size, parts, func() error { return client.readAll(b.Context(), id, size) })
		}})
	}
	r := inTurns(b, once, all)
	list := names(all)
	r.medians("MB/s", list...)
	r.ratios("unix", list...)
	r.ratios("raw", list...)
	r.costs(list...)
	for _, name := range list {
		r.medians("MiB", name+"-heap")
		r.ratio(name+"-heap-last", name+"-heap-first", "first-part")
	}
}

// follow measures a transfer of n bytes by parts calls of part: the same figures as rate, what this process has in use
// of its heap meanwhile at most, and what it keeps after the first and after the last part. What is on its way depends
// on gRPC's windows and varies; what is kept may not grow.
func (r *results) follow(name string, n int64, parts int, part func() error) error {
	heap := watchHeap()
	defer heap.close()
	var kept []float64
	err := r.rate(name, n, func() error {
		for range parts {
			if err := part(); err != nil {
				return err
			}
			runtime.GC() // the second collection frees what was in a sync.Pool
			kept = append(kept, float64(liveheap.Bytes()))
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.add(name+"-heap", heap.take()/mebi)
	r.add(name+"-heap-first", kept[0])
	r.add(name+"-heap-last", kept[parts-1])
	return nil
}

// client returns a gRPC client over bridges by w.
func (w way) client(b *testing.B, socket string) *grpc.ClientConn {
	b.Helper()
	client, err := firstCall(b.Context(), func() (io.ReadWriteCloser, error) { return w.open(socket) })
	require.NoError(b, err, w.name)
	b.Cleanup(func() { client.Close() })
	return client
}
