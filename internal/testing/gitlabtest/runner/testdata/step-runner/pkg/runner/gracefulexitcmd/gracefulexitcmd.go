// Package gracefulexitcmd stands for commands that end in two stages.
package gracefulexitcmd

import (
	"context"
	"os/exec"
	"time"
)

// New returns a command.
func New(ctx context.Context, _ time.Duration, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, name, args...)
}
