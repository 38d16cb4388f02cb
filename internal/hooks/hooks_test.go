package hooks_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/hooks"
)

func TestFillSetsOnlyTheHooksThatAreNil(t *testing.T) {
	var all struct {
		Limit  int
		Quiet  func(text string)
		Lost   func(op string) (int, error)
		Wanted func() error
	}
	wanted := errors.New("wanted")
	all.Wanted = func() error { return wanted }
	hooks.Fill(&all)
	all.Quiet("x")
	n, err := all.Lost("x")
	require.NoError(t, err)
	require.Zero(t, n)
	require.ErrorIs(t, all.Wanted(), wanted)
	require.Zero(t, all.Limit)
}
