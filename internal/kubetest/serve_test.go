package kubetest

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Symptom: if a test deleted a pod before its init process had started, that process ran on for ten minutes, and the
// end of the test waited for it.
func TestAProcessThatStartsInADeletedPodIsKilled(t *testing.T) {
	s := Serve(t)
	s.Add(Object{"metadata": Object{"name": "a"}})
	s.Delete("a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sleep", "600")
	require.NoError(t, s.start(s.pods["a"], cmd))
	require.Error(t, cmd.Wait())
	require.NoError(t, ctx.Err(), "it was killed by the test")
}
