package remotetest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Buffer collects the output of a job, and may be read while it grows. The zero value is empty. It is safe for
// concurrent use.
type Buffer struct {
	mu   sync.Mutex // guards the following
	text bytes.Buffer
	when string
	then func() // nil if none is to be called
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	b.text.Write(p)
	then := b.then
	if then != nil && bytes.Contains(b.text.Bytes(), []byte(b.when)) {
		b.then = nil
		defer then()
	}
	b.mu.Unlock()
	return len(p), nil
}

// On lets the Write with which the output has text call then, once. It replaces the On before it.
func (b *Buffer) On(text string, then func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.when, b.then = text, then
}

// Close does nothing.
func (b *Buffer) Close() error { return nil }

// String returns the output so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Await waits until text has been written.
func (b *Buffer) Await(t testing.TB, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(b.String(), text) }, 3*time.Minute, time.Millisecond,
		"%q was not written; there is: %q", text, b)
}

// WriteFiles writes texts to files below dir, by their names. A file whose name ends in .sh can be executed.
func WriteFiles(t testing.TB, dir string, texts map[string]string) {
	t.Helper()
	for name, text := range texts {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		mode := os.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o755
		}
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
	}
}
