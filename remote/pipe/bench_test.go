package pipe

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

func BenchmarkCopy(b *testing.B) {
	chunk := []byte(remotetest.Repeat(64 << 10))
	near, far, err := os.Pipe()
	require.NoError(b, err)
	done := make(chan error, 1)
	go func() { done <- Copy(io.Discard, near) }()
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := far.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, far.Close())
	require.NoError(b, <-done)
	near.Close()
}
