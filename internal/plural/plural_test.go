package plural_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/plural"
)

func TestOneThingIsNotManyThings(t *testing.T) {
	for want, got := range map[string]string{
		"0 builds": plural.Count(0, "build"), "1 build": plural.Count(1, "build"), "2 builds": plural.Count(2, "build"),
		"1 process": plural.Count(uint64(1), "process"), "2 processes": plural.Count(int64(2), "process"),
		"2 entries": plural.Count(2, "entry"), "2 keys": plural.Count(2, "key"),
	} {
		require.Equal(t, want, got)
	}
}
