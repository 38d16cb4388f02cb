package script

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// With one Writer for both outputs, two goroutines wrote to it at the same time.
func TestTwoOutputsOfOneWriterAreOneLog(t *testing.T) {
	var text bytes.Buffer
	out := openOutputs(t.Context(), &text, &text)
	require.Same(t, out.stdout, out.stderr)
	out.close(t.Context())
	out = openOutputs(t.Context(), &text, nil)
	require.NotSame(t, out.stdout, out.stderr)
	out.close(t.Context())
}
