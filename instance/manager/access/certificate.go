package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/privatefile"
)

const (
	// maxPEM bounds the files of keys and certificates, in bytes.
	maxPEM = 1 << 20
	// ownYears is how long a certificate that is made here is valid.
	ownYears = 10
	// fingerprintPrefix begins a fingerprint. It names the digest.
	fingerprintPrefix = "sha256:"
)

// Certificate reads a certificate, with those of its authorities, and its key from files in PEM.
func Certificate(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := boundedfile.Read(certFile, maxPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate: %w", err)
	}
	key, err := privatefile.Read(keyFile, maxPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key of the certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("certificate %s: %w", certFile, err)
	}
	return pair, nil
}

// OwnCertificate reads a file with a certificate and its key, and makes it if it is missing. No authority signs such a
// certificate: clients know it by its fingerprint.
func OwnCertificate(file string) (tls.Certificate, error) {
	return ownCertificate(file, func() ([]byte, error) { return privatefile.Open(file, maxPEM, newCertificate) })
}

// CheckOwnCertificate returns the error of OwnCertificate, and makes no file. made is a directory that is made before
// that, or empty.
func CheckOwnCertificate(file, made string) error {
	_, err := ownCertificate(file, func() ([]byte, error) {
		return privatefile.Preview(file, made, maxPEM, newCertificate)
	})
	return err
}

func ownCertificate(file string, read func() ([]byte, error)) (tls.Certificate, error) {
	text, err := read()
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return pair, fmt.Errorf("certificate %s: %w", file, err)
	}
	return pair, nil
}

// newCertificate returns a new certificate with its key, in PEM. Browsers do not take keys of Ed25519.
func newCertificate() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	names := []string{"localhost"}
	if name, err := os.Hostname(); err == nil && name != names[0] {
		names = append(names, name)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes([]byte(rand.Text())[:8]), Subject: pkix.Name{CommonName: "stepmux manager"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.AddDate(ownYears, 0, 0), // clocks differ
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...), nil
}

// Fingerprint returns the SHA-256 of a certificate, as a Target takes it.
func Fingerprint(cert tls.Certificate) string { return fingerprintOf(cert.Certificate[0]) }

func fingerprintOf(der []byte) string {
	sum := sha256.Sum256(der)
	return fingerprintPrefix + hex.EncodeToString(sum[:])
}
