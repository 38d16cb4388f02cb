package commands_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// gRPC imports packages of TLS and HTTP. The linker leaves out the parts that nothing calls, and a call by mistake
// brings them all in: a quarter of the program. The names of all functions are in a program's file.
func TestTheVMsEndHasNoTLSAndNoHTTPClient(t *testing.T) {
	path, err := runnertest.Program()
	require.NoError(t, err)
	program, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Contains(program, []byte("google.golang.org/grpc.(*Server).Serve\x00")), "names are found")
	for _, name := range []string{
		"crypto/tls.(*Conn).clientHandshake", "crypto/tls.(*Conn).serverHandshake", "net/http.(*Client).Do",
		"net/http.(*Transport).RoundTrip", "net/http.(*Server).Serve",
	} {
		require.False(t, bytes.Contains(program, []byte(name+"\x00")), name)
	}
}
