package service

import (
	"context"
	"crypto/sha256"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/stepmux/stepmux/internal/wire"
)

// The same error answers a missing and a wrong secret.
var (
	errSecret = status.Error(codes.Unauthenticated,
		"this build's step runner wants the secret its manager started it with")
	errToken = status.Error(codes.Unauthenticated,
		`the token is missing or wrong; send the metadata "authorization: Bearer <token>"`)
)

// RequireSecret returns an option for [NewServer]: the server refuses every call that does not carry the secret of v.
func RequireSecret(v wire.Verifier) grpc.ServerOption { return demand(v, errSecret) }

// RequireToken returns an option for [NewServer]: the server refuses every call that does not carry the token. It
// panics if the token is empty.
func RequireToken(token string) grpc.ServerOption {
	if token == "" {
		panic("service: the token is empty")
	}
	return demand(sha256.Sum256([]byte(token)), errToken)
}

// demand returns an option that refuses calls of known and unknown methods before any byte of a message is read: a
// message may have 64 MiB.
func demand(v wire.Verifier, refused error) grpc.ServerOption {
	return grpc.InTapHandle(func(ctx context.Context, call *tap.Info) (context.Context, error) {
		if !v.Admits(call.Header.Get(wire.AuthorizationKey)) {
			return nil, refused
		}
		return ctx, nil
	})
}
