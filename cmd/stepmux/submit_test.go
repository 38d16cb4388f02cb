package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A user who is not in the socket-group was told that no manager listens there, and to start one.
func TestASocketOfAManagerForOthersIsNotTakenForNone(t *testing.T) {
	err := noManager("/run/stepmux-manager/manager.sock", syscall.EACCES)
	require.ErrorContains(t, err, "this user may not use the manager's socket /run/stepmux-manager/manager.sock")
	require.ErrorContains(t, err, "--socket-group")
	require.NotContains(t, err.Error(), "no manager listens")
}
