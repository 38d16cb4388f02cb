package remote

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// awaitEvery is how often a port is tried, and awaitTry how long one try may take.
	awaitEvery, awaitTry = 50 * time.Millisecond, 5 * time.Second
)

// Await waits until each of these addresses, HOST:PORT, has accepted a TCP connection, for a manager that waits for the
// services of a build. It ends with ctx. The error says why the last try failed.
func Await(ctx context.Context, addresses []string) error {
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
