package engine

import (
	"io"

	"github.com/stepmux/stepmux/remote/expr"
)

// Masker keeps secrets out of what a job writes and says. It is safe for concurrent use.
type Masker interface {
	// Add adds a secret. The error says why it cannot be masked.
	Add(secret string) error
	// Mask returns text with all secrets replaced.
	Mask(text string) string
	// NewWriter returns a writer that passes on to w what is written, with all secrets replaced. It is
	// closed at the end of the stream; w is not. Several goroutines may write at once.
	NewWriter(w io.Writer) io.WriteCloser
}

// noMask masks nothing.
type noMask struct{}

func (noMask) Add(string) error                     { return nil }
func (noMask) Mask(text string) string              { return text }
func (noMask) NewWriter(w io.Writer) io.WriteCloser { return nopCloser{w} }

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// masked returns a writer to w, which may be nil.
func (r *Runner) masked(w io.Writer) io.WriteCloser {
	if w == nil {
		w = io.Discard
	}
	return r.cfg.Masker.NewWriter(w)
}

// protect has all texts in v masked from now on, if v is sensitive.
func (r *Runner) protect(v expr.Value) {
	if !v.Sensitive() || v.Text() == "" {
		return
	}
	switch v.Kind() {
	case expr.Array, expr.Object:
		_ = r.cfg.Masker.Add(v.Text())
		for i := range v.Len() {
			r.protect(v.Index(i))
		}
	case expr.String, expr.Number:
		// One that is too short to be told from other text is not masked, and nothing can be done about it.
		_ = r.cfg.Masker.Add(v.Text())
	default:
	}
}

// taint marks those of values as sensitive that have a secret in them, though nobody said so.
func (r *Runner) taint(values map[string]expr.Value) {
	for name, v := range values {
		if text := v.Text(); !v.Sensitive() && r.cfg.Masker.Mask(text) != text {
			values[name] = v.MarkSensitive()
		}
	}
}
