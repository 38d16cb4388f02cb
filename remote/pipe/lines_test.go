package pipe

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheWaitForTheSecretEnds(t *testing.T) {
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer out.Close()
	_, err = out.WriteString("the beginning of it")
	require.NoError(t, err)
	lines, err := OpenLines(t.Context(), in)
	require.NoError(t, err)
	_, err = lines.Secret(t.Context(), time.Millisecond)
	require.ErrorContains(t, err, "no secret came within 1ms")
	lines.Close()

	ctx, cancel := context.WithCancel(t.Context())
	lines, err = OpenLines(ctx, in)
	require.NoError(t, err)
	defer lines.Close()
	time.AfterFunc(time.Millisecond, cancel)
	_, err = lines.Secret(ctx, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
}
