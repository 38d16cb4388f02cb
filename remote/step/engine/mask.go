package engine

import (
	"errors"
	"fmt"
	"io"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// masked returns a writer to w, which may be nil, that masks the secrets of the job.
func (r *Runner) masked(w io.Writer) io.WriteCloser {
	if w == nil {
		w = io.Discard
	}
	return r.cfg.Secrets.NewWriter(w)
}

// hide masks secret from now on, unless it is too short for that. If masking fails for another reason, it returns the
// error; then the text must not be shown.
func (r *Runner) hide(secret string) error {
	if err := r.cfg.Secrets.Add(secret); !errors.Is(err, mask.ErrShort) {
		return err
	}
	return nil
}

// hideValues masks the texts of all sensitive values from now on.
func (r *Runner) hideValues(values map[string]expr.Value) error {
	for _, name := range sortedkeys.Of(values) {
		if err := r.hideValue(values[name]); err != nil {
			return fmt.Errorf("mask%s: %w", lang.Quote(name), err)
		}
	}
	return nil
}

func (r *Runner) hideValue(v expr.Value) error {
	if !v.Sensitive() || v.Text() == "" {
		return nil
	}
	if v.Kind() == expr.Null || v.Kind() == expr.Boolean {
		return nil
	}
	for i := range v.Len() {
		if err := r.hideValue(v.Index(i)); err != nil {
			return err
		}
	}
	return r.hide(v.Text())
}

// taint marks each value that contains a secret as sensitive.
func (r *Runner) taint(values map[string]expr.Value) {
	for name, v := range values {
		if !v.Sensitive() && mask.Any(v, r.cfg.Secrets.Holds) {
			values[name] = v.MarkSensitive()
		}
	}
}
