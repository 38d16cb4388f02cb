package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

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
