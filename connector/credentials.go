package connector

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/wire"
)

// Credentials returns the credentials for gRPC calls to the build's step runner, for a client that the caller opens
// over the bridges of Connect (grpc.WithPerRPCCredentials). Use them on those bridges only. It returns nil if the
// VM's step runner is of a kind without secrets.
func (c *Connector) Credentials() credentials.PerRPCCredentials {
	c.mu.Lock()
	b, linger := c.build, c.linger
	c.mu.Unlock()
	if b != nil && b.program.Kind == program.StepRunner {
		return nil
	}
	own := bearer{secret: c.secret}
	if linger != nil {
		own.manager = linger.manager
	}
	return own
}

// withCredentials adds the build's credentials to the calls of a client.
func (c *Connector) withCredentials() grpc.DialOption {
	if own := c.Credentials(); own != nil {
		return grpc.WithPerRPCCredentials(own)
	}
	return grpc.EmptyDialOption{}
}

// bearer sends a secret as the metadata of calls.
type bearer struct {
	secret  wire.Secret
	manager string // empty if the step runner does not linger
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	md := map[string]string{wire.AuthorizationKey: b.secret.Authorization()}
	if b.manager != "" {
		md[wire.ManagerKey] = b.manager
	}
	return md, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: the bridge runs inside SSH, which gRPC
// does not know.
func (bearer) RequireTransportSecurity() bool { return false }
