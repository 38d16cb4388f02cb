package connector

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneCallerFindsOutAndTheOthersWaitOrGoAnotherWay(t *testing.T) {
	v := new(VM)
	_, _, report, err := v.probe(t.Context(), true)
	require.NoError(t, err)
	require.NotNil(t, report, "the first one is asked")
	_, known, ask, err := v.probe(t.Context(), false)
	require.NoError(t, err)
	require.Nil(t, ask)
	require.False(t, known, "a build that does not wait goes on without")
	waiting := make(chan capability)
	go func() {
		known, _, _, _ := v.probe(t.Context(), true)
		waiting <- known
	}()
	report(capability{true, "works"}, -1)
	report(capability{}, 0) // only the first counts
	require.Equal(t, capability{true, "works"}, <-waiting)
	require.Equal(t, Streamlocal, v.Choice().Bridge)
}

func TestAProbeThatLearnsNothingLeavesTheQuestionToTheNext(t *testing.T) {
	v := new(VM)
	_, _, report, err := v.probe(t.Context(), true)
	require.NoError(t, err)
	report(capability{}, 0)
	require.Equal(t, Choice{}, v.Choice())
	_, _, report, err = v.probe(t.Context(), true)
	require.NoError(t, err)
	require.NotNil(t, report)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _, err = v.probe(ctx, true)
	require.ErrorIs(t, err, context.Canceled)
}

func TestNativeBridgesAreBounded(t *testing.T) {
	v := new(VM)
	for range maxNative {
		require.True(t, v.takeNative())
	}
	require.False(t, v.takeNative())
	v.native.Add(-1)
	require.True(t, v.takeNative())
}

func TestChoiceTellsWhatIsKnown(t *testing.T) {
	v := new(VM)
	v.streamlocal.Set(capability{false, "forbidden"}, forever)
	require.Empty(t, v.Choice().Bridge, "what else there is is not known yet")
	v.relay.Set(capability{false, "missing"}, forever)
	require.Equal(t, Choice{Session, "missing", Session, "forbidden"}, v.Choice())
	v.relay.Set(capability{true, "runs"}, forever)
	require.Equal(t, Choice{Relay, "runs", Relay, "forbidden"}, v.Choice())
}
