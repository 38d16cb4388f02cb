package managerv1

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// againDelay is the longest pause of a client before it connects again.
	againDelay = 200 * time.Millisecond
	// connectTimeout bounds one attempt.
	connectTimeout = 30 * time.Second
	// MaxAnswer bounds an answer of a manager, in bytes.
	MaxAnswer = 64 << 20
)

// Dial returns a connection to the manager whose socket is at a path, for a client of this package. It connects with
// the first call. The caller closes it.
func Dial(path string) (*grpc.ClientConn, error) {
	return Connect("passthrough:///manager",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the kernel checks the users of a unix socket
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
}

// Connect is grpc.NewClient with the options that all clients of a manager need.
func Connect(target string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, append(options,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxAnswer)), grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
		// A manager that is restarted is back soon.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 20 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: againDelay,
			},
			MinConnectTimeout: connectTimeout,
		}),
	)...)
}
