package network

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/commands"
)

func awaitServers(fl *pflag.FlagSet) commands.Runner {
	var addresses []string
	fl.StringArrayVar(&addresses, "tcp", nil, "`HOST:PORT`, may repeat (required)")
	return func(ctx context.Context, _ []string) (int, error) {
		if err := commands.Required(fl, "tcp"); err != nil {
			return 0, err
		}
		return 0, awaitPorts(ctx, addresses)
	}
}

// awaitTry bounds one attempt at a port.
const awaitTry = 5 * time.Second

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
	var conn net.Conn
	var refused error
	err := pause.Until(ctx, func() (bool, error) {
		conn, refused = dialer.DialContext(ctx, "tcp", address)
		return refused == nil, nil
	})
	if err != nil {
		return fmt.Errorf("await: %w (%w)", err, refused)
	}
	return conn.Close()
}
