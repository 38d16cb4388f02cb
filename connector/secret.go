package connector

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/stepmux/stepmux/internal/wire"
)

// Credentials returns what calls to the build's step runner must carry, for a client of the caller's own over what
// Connect's function opens (grpc.WithPerRPCCredentials). It is for those bridges only. nil if the VM's step runner is
// of a kind that knows no secret.
func (c *Connector) Credentials() credentials.PerRPCCredentials {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.secret.IsZero() {
		return nil
	}
	return bearer{c.secret}
}

// withCredentials makes a client send them.
func (c *Connector) withCredentials() grpc.DialOption {
	if own := c.Credentials(); own != nil {
		return grpc.WithPerRPCCredentials(own)
	}
	return grpc.EmptyDialOption{}
}

// bearer makes a secret the metadata of calls.
type bearer struct{ secret wire.Secret }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{wire.AuthorizationKey: b.secret.Authorization()}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: the bridge runs inside SSH, which gRPC
// does not know.
func (bearer) RequireTransportSecurity() bool { return false }
