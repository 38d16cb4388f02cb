package mux_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// The connection holds back the first 4 KiB of a packet until the rest comes. A packet of just that size must not wait.
func TestPacketsOfAllSizesGoOutWithEachKindOfCipher(t *testing.T) {
	for _, lines := range [][]string{
		{"Ciphers aes128-gcm@openssh.com"},
		{"Ciphers chacha20-poly1305@openssh.com"},
		{"Ciphers aes128-ctr", "MACs hmac-sha2-256"}, // a packet may have 4096 bytes
		{"Ciphers aes128-ctr", "MACs hmac-sha2-512-etm@openssh.com"},
	} {
		t.Run(lines[0], func(t *testing.T) {
			t.Parallel()
			conn := dial(t, sshtest.OpenSSH(t, lines...))
			p, err := conn.Start(sshtest.Within(t), mux.Command{Argv: []string{"cat"}})
			require.NoError(t, err)
			t.Cleanup(func() { p.Close() })
			for n := 4020; n < 4100; n++ {
				_, err := p.Write(bytes.Repeat([]byte{byte(n)}, n))
				require.NoError(t, err)
				got := make([]byte, n)
				_, err = io.ReadFull(p, got)
				require.NoError(t, err)
				require.Equal(t, n, bytes.Count(got, []byte{byte(n)}))
			}
			require.NoError(t, p.CloseWrite())
			require.NoError(t, p.Wait(sshtest.Within(t)))
		})
	}
}
