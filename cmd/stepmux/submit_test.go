package main

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/pause"
)

// A user who is not in the socket-group was told that no manager listens there, and to start one.
func TestASocketOfAManagerForOthersIsNotTakenForNone(t *testing.T) {
	err := noManager("/run/stepmux-manager/manager.sock", syscall.EACCES)
	require.ErrorContains(t, err, "this user may not use the manager's socket /run/stepmux-manager/manager.sock")
	require.ErrorContains(t, err, "--socket-group")
	require.NotContains(t, err.Error(), "no manager listens")
}

// The list showed "script_failure 0" for it, as if its script had succeeded.
func TestAFailedBuildWithoutAnExitCodeIsListedWithoutOne(t *testing.T) {
	var out strings.Builder
	failed := &pb.Build{Result: &pb.Result{Reason: "script_failure"}}
	require.NoError(t, writeBuilds(&out, &pb.ListResponse{Builds: []*pb.Build{failed}}))
	require.Regexp(t, `script_failure +-`, out.String()) // the next column is the VM, which it has not
}

// The clock of the manager's machine is ahead of this one's.
func TestABuildIsListedAsTakingNoLessThanNothing(t *testing.T) {
	var out strings.Builder
	begun := &pb.Build{Phase: pb.Build_running, Started: timestamppb.New(time.Now().Add(time.Hour))}
	require.NoError(t, writeBuilds(&out, &pb.ListResponse{Builds: []*pb.Build{begun}}))
	require.Regexp(t, ` 0s +-\n`, out.String())
}

// answers is a manager whose answers to requests are lost at first.
type answers struct {
	pb.ManagerClient
	lost int
	keys []string // of the requests
}

func (m *answers) Submit(
	_ context.Context, req *pb.SubmitRequest, _ ...grpc.CallOption,
) (*pb.SubmitResponse, error) {
	m.keys = append(m.keys, req.GetKey())
	if len(m.keys) <= m.lost {
		return nil, status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	return &pb.SubmitResponse{Id: "1-" + req.GetKey()}, nil
}

// submit failed where the manager ended before it had answered, although the build was queued. A second submit made a
// second build.
func TestASubmitWhoseAnswerIsLostIsSentAgainWithItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &answers{lost: 3}
		id, err := queueJob(t.Context(), m, nil, &pb.Job{})
		require.NoError(t, err)
		require.Len(t, m.keys, 4)
		for _, key := range m.keys {
			require.Equal(t, "1-"+key, id)
		}
		_, err = queueJob(t.Context(), m, nil, &pb.Job{})
		require.NoError(t, err)
		require.NotEqual(t, m.keys[0], m.keys[4], "another request")

		m, began := &answers{lost: 1 << 20}, time.Now()
		_, err = queueJob(t.Context(), m, nil, &pb.Job{})
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "error reading from server: EOF; the build may be queued: stepmux builds lists it")
		require.InDelta(t, awayLimit, time.Since(began), float64(time.Second), "long before the manager forgets the key")
	})
}

// uploads is a manager that ends in the middle of the first uploads of a project.
type uploads struct {
	answers
	ends, begun int
	takes       time.Duration // for each of the uploads, and for the first one after them
}

type upload struct {
	grpc.BidiStreamingClient[pb.KeepProjectRequest, pb.KeepProjectResponse]
	takes time.Duration
	err   error
}

func (m *uploads) KeepProject(context.Context, ...grpc.CallOption) (
	grpc.BidiStreamingClient[pb.KeepProjectRequest, pb.KeepProjectResponse], error,
) {
	m.begun++
	switch {
	case m.begun <= m.ends:
		return upload{takes: m.takes, err: status.Error(codes.Unavailable, "error reading from server: EOF")}, nil
	case m.begun == m.ends+1:
		return upload{takes: m.takes}, nil
	default:
		return upload{}, nil // the manager has the archive
	}
}

func (upload) Send(*pb.KeepProjectRequest) error { return nil }

func (u upload) Recv() (*pb.KeepProjectResponse, error) {
	_ = pause.For(context.Background(), u.takes)
	return &pb.KeepProjectResponse{}, u.err
}

// submit --project failed where the manager ended during the upload. Later it failed where the manager ended after an
// upload of more than a minute.
func TestAProjectIsSentAgainIfTheManagerEndsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, takes := range []time.Duration{0, 5 * time.Minute} {
			m := &uploads{ends: 1, takes: takes, answers: answers{lost: 2}}
			_, err := queueJob(t.Context(), m, &packed{}, &pb.Job{})
			require.NoError(t, err)
			require.Equal(t, 4, m.begun)
			require.Len(t, m.keys, 3)
		}
		_, err := queueJob(t.Context(), &uploads{ends: 1 << 20}, &packed{}, &pb.Job{})
		require.Equal(t, status.Error(codes.Unavailable, "error reading from server: EOF"), err, "it is not queued")
	})
}
