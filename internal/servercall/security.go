package servercall

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/stepmux/stepmux/internal/boundedfile"
)

const maxPEM = 4 << 20 // bounds a file with certificates, in bytes

// Files names the files of a client's TLS. All are optional.
type Files struct {
	// CA has certificates of authorities to trust in addition to the system's.
	CA string
	// Cert and Key are the client's own certificate and key.
	Cert, Key string
}

// Config reads the files.
func (f Files) Config() (*tls.Config, error) {
	security := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		data, err := boundedfile.Read(f.CA, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("read the certificates of the authorities: %w", err)
		}
		if security.RootCAs, err = x509.SystemCertPool(); err != nil {
			security.RootCAs = x509.NewCertPool()
		}
		if !security.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s has no certificate in PEM form", f.CA)
		}
	}
	if f.Cert != "" || f.Key != "" {
		own, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("read the client's certificate %q and its key %q: %w", f.Cert, f.Key, err)
		}
		security.Certificates = []tls.Certificate{own}
	}
	return security, nil
}
