package engine

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Masker keeps secrets out of what a job writes and says. It is safe for concurrent use.
type Masker interface {
	// Add adds a secret. One that is too short to be told from other text is not masked, and nothing can be done
	// about that. The error says why another cannot be: nobody is to see it then.
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

// protect has all texts in values masked from now on, if they are sensitive.
func (r *Runner) protect(values map[string]expr.Value) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := r.protectOne(values[name]); err != nil {
			return fmt.Errorf("mask%s: %w", lang.Quote(name), err)
		}
	}
	return nil
}

func (r *Runner) protectOne(v expr.Value) error {
	if !v.Sensitive() || v.Text() == "" {
		return nil
	}
	switch v.Kind() {
	case expr.Array, expr.Object:
		for i := range v.Len() {
			if err := r.protectOne(v.Index(i)); err != nil {
				return err
			}
		}
	case expr.String, expr.Number:
	default:
		return nil
	}
	return r.cfg.Masker.Add(v.Text())
}

// message returns a text for people, without secrets and fit for a protocol that knows UTF-8 only: it may quote what
// is foreign.
func (r *Runner) message(text string) string {
	return strings.ToValidUTF8(r.cfg.Masker.Mask(text), "\uFFFD")
}

// taint marks those of values as sensitive that have a secret in them, though nobody said so.
func (r *Runner) taint(values map[string]expr.Value) {
	for name, v := range values {
		if !v.Sensitive() && holds(v, func(text string) bool { return r.cfg.Masker.Mask(text) != text }) {
			values[name] = v.MarkSensitive()
		}
	}
}

// holds reports whether a secret is in v: in one of its texts, or in all of it as JSON.
func holds(v expr.Value, secret func(text string) bool) bool {
	if secret(v.Text()) {
		return true
	}
	keys := v.Keys()
	for i := range v.Len() {
		if keys != nil && secret(keys[i]) || holds(v.Index(i), secret) {
			return true
		}
	}
	return false
}
