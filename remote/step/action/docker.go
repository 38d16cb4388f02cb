package action

import (
	"context"
	"errors"

	"github.com/stepmux/stepmux/remote/step/engine"
)

func (x *running) runDocker(
	ctx context.Context, res *engine.StepResult, a *loaded, inputs, env map[string]string, entrypoint string,
) engine.Outcome {
	return engine.Failed(errors.New("docker actions are not supported"))
}
