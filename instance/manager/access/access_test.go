package access_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/access"
)

func TestTokensAreMadeOnceAndCheckedWhole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	_, err := access.ReadToken(file)
	require.ErrorContains(t, err, "no such file")
	token, err := access.OpenToken(file)
	require.NoError(t, err)
	again, err := access.ReadToken(file)
	require.NoError(t, err)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	text := strings.TrimSpace(string(data))
	require.GreaterOrEqual(t, len(text), 43, "32 bytes in base64")
	require.True(t, again.Matches(text))
	require.True(t, token.Authorizes("bearer "+text))
	for _, bad := range []string{"", text[1:], text + "x", strings.ToLower(text)} {
		require.False(t, token.Matches(bad))
		require.False(t, token.Authorizes("Bearer "+bad))
	}
	require.False(t, token.Authorizes(text))
	require.NotEqual(t, token.Sign("a"), token.Sign("b"))

	require.NoError(t, os.Chmod(file, 0o640))
	_, err = access.OpenToken(file)
	require.ErrorContains(t, err, "can be read by others")
	for bad, message := range map[string]string{
		"short\n": "too short", strings.Repeat("x", 40) + " " + text: "no visible ASCII",
	} {
		other := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(other, []byte(bad), 0o600))
		_, err = access.OpenToken(other)
		require.ErrorContains(t, err, message)
		require.NotContains(t, err.Error(), text, "no error has a token")
	}
}

func TestTargetsSayWhatIsWrongWithThem(t *testing.T) {
	dir := t.TempDir()
	cert, err := access.OwnCertificate(filepath.Join(dir, "tls.pem"))
	require.NoError(t, err)
	same, err := access.OwnCertificate(filepath.Join(dir, "tls.pem"))
	require.NoError(t, err)
	require.Equal(t, access.Fingerprint(cert), access.Fingerprint(same))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"},
	})
	require.NoError(t, err)
	defer listener.Close()
	go func() { // until the listener is closed
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	token := filepath.Join(dir, "token")
	_, err = access.OpenToken(token)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	url := "https://localhost:" + port
	ca := filepath.Join(dir, "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	require.NoError(t, os.WriteFile(ca, text, 0o600))
	dial := func(to access.Target) error {
		conn, err := to.Dial(context.Background())
		if err == nil {
			conn.Close()
		}
		return err
	}
	require.NoError(t, dial(access.Target{URL: url, TokenFile: token, Fingerprint: access.Fingerprint(cert)}))
	require.NoError(t, dial(access.Target{URL: url, TokenFile: token, CAFile: ca}))
	for message, to := range map[string]access.Target{
		"is https://HOST:PORT":            {URL: "https://u:secret@h:1", TokenFile: token},
		"and nothing more":                {URL: url + "/?token=x", TokenFile: token},
		"wants a token":                   {URL: url},
		"either the fingerprint":          {URL: url, TokenFile: token, CAFile: ca, Fingerprint: "sha256:00"},
		"use sha256: and 64 hexadecimal":  {URL: url, TokenFile: token, Fingerprint: "sha256:00"},
		"has no certificate in PEM":       {URL: url, TokenFile: token, CAFile: token},
		"name the fingerprint":            {URL: url, TokenFile: token},
		"has the fingerprint sha256:":     {URL: url, TokenFile: token, Fingerprint: "sha256:" + strings.Repeat("0", 64)},
		"no manager can be reached at ht": {URL: "https://127.0.0.1:1", TokenFile: token},
	} {
		require.ErrorContains(t, dial(to), message)
		require.NotContains(t, dial(to).Error(), "secret")
	}
}
