package network

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/innerport"
)

func withServices(fl *pflag.FlagSet) commands.Runner {
	var address, socket string
	fl.StringVar(&address, "listen", "", "`HOST:PORT` at which the program finds the services (required)")
	fl.StringVar(&socket, "socket", "", "unix socket by which they are reached (required)")
	return func(ctx context.Context, args []string) (int, error) {
		for _, name := range []string{"listen", "socket"} {
			if err := commands.Required(fl, name); err != nil {
				return 0, err
			}
		}
		if len(args) == 0 {
			return 0, fmt.Errorf("%w: a PROGRAM is missing", commands.ErrUsage)
		}
		return innerport.Run(ctx, address, socket, args, os.Stderr), nil
	}
}
