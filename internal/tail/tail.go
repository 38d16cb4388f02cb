// Package tail keeps the last lines of a foreign program's output, for error messages. A [Writer] collects them;
// [Append] and [Lines] do the same for a slice.
package tail

import (
	"bytes"
	"strings"
	"sync"
)

const (
	// MaxBytes bounds the kept output.
	MaxBytes = 2 << 10
	maxLines = 5
)

// crashes are the beginnings of the first line that a crashing Go program prints. The stacks after it are longer than
// MaxBytes, and less useful.
var crashes = []string{"runtime: ", "fatal error: ", "panic: "}

// IsCrash reports whether a line is one of the first of a crashing Go program.
func IsCrash(line string) bool { return crash([]byte(line)) == 0 }

// IsStack reports whether the stacks of a crash begin with a line.
func IsStack(line string) bool {
	return strings.HasPrefix(line, "runtime stack:") || strings.HasPrefix(line, "goroutine ")
}

// Remedy returns advice about the text of a Go program that has crashed, or could not be started, because its user has
// too little of something. It is empty for other texts.
func Remedy(text string) string {
	switch {
	case strings.Contains(text, "failed to create new OS thread"), strings.Contains(text, "newosproc"),
		strings.HasSuffix(text, "resource temporarily unavailable"):
		return " (its user has as many processes as allowed: raise ulimit -u, or TasksMax of the user's slice)"
	case strings.Contains(text, "fatal error: failed to reserve"), strings.Contains(text, "cannot allocate memory"),
		strings.Contains(text, "fatal error: runtime: out of memory"), strings.Contains(text, "fatal error: out of memory"):
		return " (it got no memory: raise ulimit -v, or give the machine more memory)"
	}
	return ""
}

// crash returns the offset of a crash's text, or -1.
func crash(text []byte) int {
	first := -1
	for _, c := range crashes {
		at := 0
		if !bytes.HasPrefix(text, []byte(c)) {
			at = bytes.Index(text, []byte("\n"+c)) + 1
			if at == 0 {
				continue
			}
		}
		if first < 0 || at < first {
			first = at
		}
	}
	return first
}

// Append appends p to kept and keeps the last MaxBytes, or the first ones of a crash.
func Append(kept, p []byte) []byte {
	kept = append(kept, p...)
	from := max(0, len(kept)-MaxBytes)
	if at := crash(kept); at >= 0 {
		from = at
	}
	if from > 0 {
		kept = append(kept[:0], kept[from:]...)
	}
	return kept[:min(len(kept), MaxBytes)]
}

// Lines returns the last maxLines lines of foreign text as one line, or the first ones of a crash, with advice.
func Lines(text []byte) string {
	at := crash(text)
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(string(text[max(0, at):]), "?")) {
		if at >= 0 && IsStack(line) {
			break
		}
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if at >= 0 {
		said := strings.Join(lines[:min(len(lines), maxLines)], " | ")
		return said + Remedy(said)
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
