package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/remote/commands"
)

func awaitServers(fl *pflag.FlagSet) commands.Runner {
	var addresses []string
	fl.StringArrayVar(&addresses, "tcp", nil, "`HOST:PORT`, may repeat (required)")
	return func(ctx context.Context, _ []string) (int, error) {
		if err := commands.Required(fl, "tcp"); err != nil {
			return 0, err
		}
		err := awaitPorts(ctx, addresses)
		if code := endsignal.Code(ctx); code != 0 && errors.Is(err, context.Cause(ctx)) {
			return code, nil
		}
		return 0, err
	}
}

const (
	// awaitEvery is the time between two attempts at a port, and awaitTry bounds one attempt.
	awaitEvery, awaitTry = 50 * time.Millisecond, 5 * time.Second
)

// awaitPorts waits until each address, HOST:PORT, has accepted a TCP connection, or ctx ends. Then the error says why
// the last attempt failed.
func awaitPorts(ctx context.Context, addresses []string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, address := range addresses {
		group.Go(func() error { return awaitPort(ctx, address) })
	}
	return group.Wait()
}

func awaitPort(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: awaitTry}
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("await: %w (%w)", context.Cause(ctx), err)
		}
	}
}
