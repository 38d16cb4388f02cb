package dockertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listens matches the daemon's message that it listens on TCP.
var listens = regexp.MustCompile(`API listen on (127\.0\.0\.1:[0-9]+)`)

// TCP returns the address at which the daemon also listens. It accepts only clients with a certificate.
func (d *Daemon) TCP(t testing.TB) string {
	t.Helper()
	said, err := os.ReadFile(filepath.Join(d.dir, "log"))
	require.NoError(t, err)
	found := listens.FindAllSubmatch(said, -1)
	require.NotEmpty(t, found)
	return string(found[len(found)-1][1])
}

// Certs returns the path of a directory with ca.pem, cert.pem and key.pem, for the daemon and its clients.
func (d *Daemon) Certs() string { return filepath.Join(d.dir, "certs") }

// writeCerts makes a certificate that is its own authority.
func writeCerts(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	return errors.Join(
		os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "ca.pem"), text, 0o600),
		os.WriteFile(filepath.Join(dir, "cert.pem"), text, 0o600),
		os.WriteFile(filepath.Join(dir, "key.pem"),
			pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600),
	)
}
