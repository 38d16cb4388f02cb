package mux_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

func TestMain(m *testing.M) {
	// The SSH library leaves these behind if a server breaks the protocol. A connection that lives has more.
	code := runnertest.M{M: m, Leaks: []goleak.Option{
		goleak.IgnoreAnyFunction("golang.org/x/crypto/ssh.(*mux).loop"),
		goleak.IgnoreAnyFunction("golang.org/x/crypto/ssh.(*mux).Wait"),
		goleak.IgnoreAnyFunction("golang.org/x/crypto/ssh.(*handshakeTransport).readLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/crypto/ssh.(*handshakeTransport).kexLoop"),
	}}.Run()
	_ = os.RemoveAll(relayTempDir) // empty if no test used it
	os.Exit(code)
}
