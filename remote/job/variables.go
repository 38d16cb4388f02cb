package job

import (
	"errors"
	"fmt"
	"io"
	"regexp"

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

// masker is the engine's view of a job's secrets: it adds secrets that appear during the job. It does not mask the
// streams, which output does.
type masker struct{ secrets *mask.Set }

func (m masker) Add(secret string) error {
	if err := m.secrets.Add(secret); !errors.Is(err, mask.ErrShort) {
		return err
	}
	return nil
}

func (m masker) Mask(text string) string { return hideMessage(m.secrets, text) }

func (masker) NewWriter(w io.Writer) io.WriteCloser { return unclosed{w} }

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

var exitStatus = regexp.MustCompile(`exit status \d{1,3}$`)

// hideMessage masks a message, except for the exit status at its end, which callers read.
func hideMessage(secrets *mask.Set, message string) string {
	status := exitStatus.FindString(message)
	return secrets.Mask(message[:len(message)-len(status)]) + status
}
