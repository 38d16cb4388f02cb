package network

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

func fetchStep(*pflag.FlagSet) commands.Runner {
	return func(ctx context.Context, _ []string) (int, error) {
		if err := pipe.Conceal(); err != nil { // the request has credentials
			return 0, err
		}
		// This process then becomes the parent of children that git leaves behind, and fetch waits for them.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return 0, fmt.Errorf("adopt the processes of git: %w", err)
		}
		return 0, fetch.Answer(ctx, os.Stdin, os.Stdout)
	}
}
