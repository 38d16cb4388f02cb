package sshtest

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Bound is a generous limit for events that must happen. No test measures time by it.
const Bound = time.Minute

// Within returns a context that bounds a test's waits.
func Within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Bound)
	t.Cleanup(cancel)
	return ctx
}

// Log is a build log that may be read while it grows.
type Log struct {
	mu  sync.Mutex // guards the following
	buf bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// Close does nothing.
func (l *Log) Close() error { return nil }

// String returns the log so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Await waits until the log has text.
func (l *Log) Await(t testing.TB, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(l.String(), text) }, Bound, time.Millisecond, "log: %s", l)
}
