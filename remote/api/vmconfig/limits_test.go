package vmconfig

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizesAreShort(t *testing.T) {
	require.Equal(t, "512 MiB", FormatSize(512<<20))
	require.Equal(t, "1.5 GiB", FormatSize(3<<29))
	require.Equal(t, "17 bytes", FormatSize(17))
}
