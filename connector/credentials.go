package connector

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/wire"
)

// Credentials returns the credentials of calls to the build's step runner, for a client of the caller's own over the
// bridges of Connect (grpc.WithPerRPCCredentials). They are for those bridges only, and nil if the VM's step runner is
// of a kind without secrets.
func (c *Connector) Credentials() credentials.PerRPCCredentials {
	if b, _ := c.current(); b != nil && b.program.Kind == program.StepRunner {
		return nil
	}
	return bearer{c.secret}
}

// withCredentials adds them to the calls of a client.
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
