package sortedkeys_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/sortedkeys"
)

func TestOfReturnsTheKeysOfAnyMapInOrder(t *testing.T) {
	require.Equal(t, []string{"a", "b", "c"}, sortedkeys.Of(map[string]int{"c": 1, "a": 2, "b": 3}))
	require.Equal(t, []string{"a"}, sortedkeys.Of(map[string]struct{ hidden any }{"a": {}}))
	require.Empty(t, sortedkeys.Of(map[string]bool(nil)))
}
