package job

import (
	"errors"
	"fmt"
	"slices"

	"github.com/stepmux/stepmux/remote/step/mask"
)

// hideAll adds the values of masked variables, and the other secrets of a job, to secrets. It returns a notice for each
// variable whose value is too short to be masked. If it returns an error (too many secrets), the job must not run.
func hideAll(secrets *mask.Set, spec Spec) (notices []string, err error) {
	for _, v := range spec.Vars {
		if !v.Masked || v.Value == "" {
			continue
		}
		err := secrets.Add(v.Value)
		switch {
		case errors.Is(err, mask.ErrShort):
			notices = append(notices, fmt.Sprintf("Variable %s is not masked: %v", v.Key, err))
		case err != nil:
			return nil, fmt.Errorf("mask variable %s: %w", v.Key, err)
		}
	}
	for _, text := range append(slices.Clip(spec.Secrets), spec.Services.Token) {
		if err := secrets.Add(text); err != nil && !errors.Is(err, mask.ErrShort) {
			return nil, fmt.Errorf("mask a secret: %w", err)
		}
	}
	return notices, nil
}
