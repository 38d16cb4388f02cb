package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
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
