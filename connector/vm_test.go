package connector

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneCallerFindsOutAndTheOthersWaitOrGoAnotherWay(t *testing.T) {
	v := new(VM)
	_, found, err := v.streamlocalVerdict(t.Context(), true)
	require.NoError(t, err)
	require.NotNil(t, found, "the first one is asked")
	known, ask, err := v.streamlocalVerdict(t.Context(), false)
	require.NoError(t, err)
	require.Nil(t, ask)
	require.False(t, known.known, "who would not wait goes on without")
	waiting := make(chan verdict)
	go func() {
		known, _, _ := v.streamlocalVerdict(t.Context(), true)
		waiting <- known
	}()
	found(verdict{true, true, "works"})
	found(verdict{}) // only the first counts
	require.Equal(t, verdict{true, true, "works"}, <-waiting)
	require.Equal(t, Streamlocal, v.Choice().Bridge)
}

func TestAProbeThatLearnsNothingLeavesTheQuestionToTheNext(t *testing.T) {
	v := new(VM)
	_, found, err := v.streamlocalVerdict(t.Context(), true)
	require.NoError(t, err)
	found(verdict{})
	require.Equal(t, Choice{}, v.Choice())
	_, found, err = v.streamlocalVerdict(t.Context(), true)
	require.NoError(t, err)
	require.NotNil(t, found)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = v.streamlocalVerdict(ctx, true)
	require.ErrorIs(t, err, context.Canceled)
}

func TestNativeBridgesAreBounded(t *testing.T) {
	v := new(VM)
	for range maxNative {
		require.True(t, v.takeNative())
	}
	require.False(t, v.takeNative())
	v.giveNative()
	require.True(t, v.takeNative())
}

func TestChoiceTellsWhatIsKnown(t *testing.T) {
	v := new(VM)
	v.judgeStreamlocal(false, "forbidden")
	require.Empty(t, v.Choice().Bridge, "what else there is is not known yet")
	v.judgeRelay(false, "missing")
	require.Equal(t, Choice{Session, "missing", Session, "forbidden"}, v.Choice())
	v.judgeRelay(true, "runs")
	require.Equal(t, Choice{Relay, "runs", Relay, "forbidden"}, v.Choice())
}
