// Package tail keeps the last lines of a foreign program's output, for error messages.
package tail

import (
	"strings"
	"sync"
)

const (
	// MaxBytes bounds the kept output.
	MaxBytes = 2 << 10
	maxLines = 5
)

// Append appends p to kept and keeps the last MaxBytes.
func Append(kept, p []byte) []byte {
	kept = append(kept, p[max(0, len(p)-MaxBytes):]...)
	if over := len(kept) - MaxBytes; over > 0 {
		kept = append(kept[:0], kept[over:]...)
	}
	return kept
}

// Lines returns the last maxLines lines of foreign text as one line.
func Lines(text []byte) string {
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(string(text), "?")) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-maxLines):], " | ")
}

// Writer keeps the last MaxBytes written to it. It is safe for concurrent use; the zero value is ready to use.
type Writer struct {
	mu   sync.Mutex // guards kept
	kept []byte
}

// Write implements io.Writer. It never fails.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = Append(w.kept, p)
	return len(p), nil
}

// String returns the last lines as one line, as Lines does.
func (w *Writer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Lines(w.kept)
}
