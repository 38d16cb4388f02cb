package program

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// writes counts calls of Write.
type writes int

func (w *writes) Write(p []byte) (int, error) {
	*w++
	return len(p), nil
}

// Symptom: an upload was sent in pieces of 240 bytes, each in a packet of its own, and took up to a minute.
func TestAProgramIsSentInLargePieces(t *testing.T) {
	b, _, err := loadBinary(os.Args[0], []string{"github.com/stepmux/stepmux/connector/program.test"})
	require.NoError(t, err)
	told, err := b.facts()
	require.NoError(t, err)
	var count writes
	require.NoError(t, b.writeTo(&count, true, told.size))
	require.Less(t, int64(count), told.size/(16<<10))
}
