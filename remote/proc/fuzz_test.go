package proc

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzShimsMessages decodes a shim's messages: no pid that stands for several processes, and one encoding of each message.
func FuzzShimsMessages(f *testing.F) {
	f.Add(encodeNumbers(4711))
	f.Add(encodeNumbers(1))
	f.Add(encodeNumbers(math.MaxUint64))
	f.Add((&failure{stageExec, 2}).encode())
	f.Add(encodeNumbers(9, 1, 2, 3))
	f.Fuzz(func(t *testing.T, data []byte) {
		if pid, err := decodeStarted(data); err == nil {
			require.Greater(t, pid, 1)
			require.LessOrEqual(t, pid, math.MaxInt32)
		}
		if e, err := decodeExited(data); err == nil && e.Signal != 0 {
			require.Equal(t, 128+int(e.Signal), e.Code)
		}
		if failed, err := decodeFailure(data); err == nil {
			require.Error(t, failed.error(&Command{Argv: []string{"x"}}))
		}
	})
}
