package service

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// tokenKey is the metadata that carries a token, and tokenScheme what stands before it.
const (
	tokenKey    = "authorization"
	tokenScheme = "Bearer "
)

// errToken does not tell a missing token from a wrong one.
var errToken = status.Error(codes.Unauthenticated, `the token is missing or wrong; send the metadata "authorization: Bearer <token>"`)

// RequireToken returns an option for [NewServer] that refuses every call without the token, before anything of
// its message is read. How long it looks at a wrong one tells nothing of the right one. A token that is empty
// is a mistake of the caller's, and panics.
func RequireToken(token string) grpc.ServerOption {
	if token == "" {
		panic("service: the token is empty")
	}
	want := sha256.Sum256([]byte(token))
	return grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		return ctx, checkToken(info.Header, want)
	})
}

// checkToken checks that there is one token, of which the hash is want.
func checkToken(header metadata.MD, want [sha256.Size]byte) error {
	values := header.Get(tokenKey)
	if len(values) != 1 {
		return errToken
	}
	token, ok := strings.CutPrefix(values[0], tokenScheme)
	got := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !ok {
		return errToken
	}
	return nil
}

// WithToken returns ctx for a call of a server that requires token.
func WithToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, tokenKey, tokenScheme+token)
}
