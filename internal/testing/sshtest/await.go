package sshtest

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

// Bound is a generous limit for events that must happen. No test measures time by it.
const Bound = 3 * time.Minute

// Within returns a context that bounds a test's waits.
func Within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Bound)
	t.Cleanup(cancel)
	return ctx
}

// InBlockedCall runs fn in a goroutine and returns once fn waits for something. The channel gets fn's error.
func InBlockedCall(t testing.TB, fn func() error) <-chan error {
	t.Helper()
	id, done := make(chan []byte, 1), make(chan error, 1)
	go func() {
		stack := make([]byte, 64)
		runtime.Stack(stack, false) // "goroutine 7 [running]:"
		id <- stack[:bytes.IndexByte(stack, '[')]
		done <- fn()
	}()
	prefix := append([]byte("\n"), <-id...)
	stacks := make([]byte, 4<<20)
	require.Eventually(t, func() bool { return isBlocked(prefix, stacks) }, Bound, time.Millisecond)
	return done
}

// isBlocked reports whether the goroutine whose stack begins with prefix waits for a channel. It uses stacks.
func isBlocked(prefix, stacks []byte) bool {
	stacks = stacks[:runtime.Stack(stacks, true)]
	_, state, found := bytes.Cut(stacks, prefix)
	return found && (bytes.HasPrefix(state, []byte("[select")) || bytes.HasPrefix(state, []byte("[chan ")))
}

// Log is a build log that may be read while it grows.
type Log = remotetest.Buffer
