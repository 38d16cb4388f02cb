package mux

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A server that is slow to free sessions refuses some although fewer than its limit are open. Each such refusal took
// one from the learned limit: a connection that allows ten had six after some seconds, and one that allows three had
// one.
func TestRefusalsOfASlowServerDoNotLowerTheLimitBelowThePeak(t *testing.T) {
	s := &budget{}
	refuse := func() {
		require.True(t, s.tryAcquire(1))
		s.closed(false)
		s.refuse()
	}
	open := func() {
		require.True(t, s.tryAcquire(1))
		s.opened()
	}
	for range 3 {
		open()
	}
	refuse() // the fourth
	for range 10 {
		require.Equal(t, 3, s.stat().Limit)
		s.closed(true)
		refuse() // the server has not freed it yet
		open()
	}
	require.Equal(t, 3, s.stat().Open)
}
