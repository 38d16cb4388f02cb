package command

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInputsHoldABoundedPartUntilTheyStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := NewInputs(10)
		n, err := in.Write(make([]byte, 100)) // the first piece may be larger
		require.NoError(t, err)
		require.Equal(t, 100, n)
		ended := make(chan error)
		go func() {
			_, err := in.Write([]byte("x"))
			ended <- err
		}()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("the second piece did not wait: %v", err)
		default:
		}
		for range 100 {
			in.Signal("TERM") // does not wait
		}
		require.Len(t, in.signals, maxSignals)
		in.Stop()
		require.ErrorIs(t, <-ended, io.ErrClosedPipe)
	})
}

func TestLinesAreBounded(t *testing.T) {
	t.Parallel()
	for _, tools := range []bool{false, true} {
		require.NoError(t, Line{"true", tools}.Check())
		require.NoError(t, Line{strings.Repeat("x", MaxLine), tools}.Check())
		require.Error(t, Line{"", tools}.Check())
		require.Error(t, Line{strings.Repeat("x", MaxLine+1), tools}.Check())
	}
}
