package job

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// hideAll adds the values of masked variables, and other texts, to secrets. It returns a line for each variable that is
// too short to be masked. With an error, too many secrets for one, the job must not run.
func hideAll(secrets *mask.Set, vars []engine.Variable, others []string) (notices []string, err error) {
	for _, v := range vars {
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
	for _, text := range others {
		if err := secrets.Add(text); err != nil && !errors.Is(err, mask.ErrShort) {
			return nil, fmt.Errorf("mask a secret: %w", err)
		}
	}
	return notices, nil
}
