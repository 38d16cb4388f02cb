package access

import (
	"cmp"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/boundedfile"
)

// scheme begins the address of a manager that is reached by TCP.
const scheme = "https://"

// IsURL reports whether a text is the URL of a manager, and not the path of its socket.
func IsURL(text string) bool { return strings.HasPrefix(text, scheme) }

// Target is the address of a manager, and how its client verifies it.
type Target struct {
	// URL is https://HOST:PORT. Required.
	URL string
	// TokenFile has the token. Required.
	TokenFile string
	// Fingerprint is the fingerprint of the manager's certificate, as returned by the function Fingerprint and shown
	// in the manager's log. If empty, an authority must have signed the certificate for the HOST.
	Fingerprint string
	// CAFile has certificates of authorities in PEM. If empty, those of the system. With a Fingerprint it must be empty.
	CAFile string
}

// dialer is a Target that was read.
type dialer struct {
	addr  string
	token *Token
	tls   *tls.Config
}

// read checks a Target and reads its files.
func (t Target) read() (d dialer, err error) {
	at, err := url.Parse(t.URL)
	switch {
	case err != nil || at.Host == "" || at.Port() == "" || at.User != nil || strings.Trim(at.Path, "/") != "" ||
		at.RawQuery != "" || at.Fragment != "":
		return d, errors.New("the address of a manager is https://HOST:PORT, and nothing more") // it may have a secret
	case t.TokenFile == "":
		return d, errors.New("a manager that is reached by TCP wants a token: name its file with --token-file or " +
			"$STEPMUX_TOKEN_FILE")
	case t.Fingerprint != "" && t.CAFile != "":
		return d, errors.New("use either the fingerprint of the manager's certificate or the authority that signed it")
	}
	d.addr = at.Host
	if d.token, err = ReadToken(t.TokenFile); err != nil {
		return d, err
	}
	d.tls = &tls.Config{MinVersion: tls.VersionTLS13, ServerName: at.Hostname(), NextProtos: []string{"h2"}}
	switch {
	case t.Fingerprint != "":
		digits := strings.ReplaceAll(strings.TrimPrefix(t.Fingerprint, fingerprintPrefix), ":", "") // openssl writes colons
		sum, err := hex.DecodeString(digits)
		if err != nil || len(sum) != 32 {
			return d, fmt.Errorf("the fingerprint %.100q: use sha256: and 64 hexadecimal digits", t.Fingerprint)
		}
		want := fingerprintPrefix + hex.EncodeToString(sum)
		d.tls.InsecureSkipVerify = true // the fingerprint names one certificate
		d.tls.VerifyConnection = func(state tls.ConnectionState) error {
			got := fingerprintOf(state.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
				return fmt.Errorf("the manager's certificate has the fingerprint %s, not %s", got, want)
			}
			return nil
		}
	case t.CAFile != "":
		text, err := boundedfile.Read(t.CAFile, maxPEM)
		if err != nil {
			return d, err
		}
		d.tls.RootCAs = x509.NewCertPool()
		if !d.tls.RootCAs.AppendCertsFromPEM(text) {
			return d, fmt.Errorf("%s has no certificate in PEM", t.CAFile)
		}
	}
	return d, nil
}

// Dial returns a connection to the manager for a client of package managerv1, once a first connection, which ctx
// bounds, has succeeded. The caller closes it. The error is about the Target, or wraps ErrAway.
func (t Target) Dial(ctx context.Context) (*grpc.ClientConn, error) {
	d, err := t.read()
	if err != nil {
		return nil, err
	}
	// gRPC would try again and again, and tell little.
	probe, err := (&tls.Dialer{NetDialer: &net.Dialer{}, Config: d.tls}).DialContext(ctx, "tcp", d.addr)
	if err != nil {
		hint := ""
		if _, unknown := errors.AsType[x509.UnknownAuthorityError](err); unknown {
			hint = "; name the fingerprint of its certificate, which is in the manager's log (manager -v), or the " +
				"authority"
		}
		return nil, fmt.Errorf("%w at %s: %w%s", ErrAway, t.URL, cmp.Or(context.Cause(ctx), err), hint)
	}
	_ = probe.Close() // it was not used
	return pb.Connect("passthrough:///"+d.addr, grpc.WithTransportCredentials(credentials.NewTLS(d.tls)),
		grpc.WithPerRPCCredentials(d.token), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr) // gRPC's own notices a dead link only after two hours
		}))
}

// ErrAway reports that no manager could be reached.
var ErrAway = errors.New("no manager can be reached")

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t *Token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": bearer + t.text}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (*Token) RequireTransportSecurity() bool { return true }

// bearer begins the value of the header authorization (RFC 6750).
const bearer = "Bearer "

// Authorizes reports whether the value of a header authorization shows the token.
func (t *Token) Authorizes(header string) bool {
	return len(header) > len(bearer) && strings.EqualFold(header[:len(bearer)], bearer) && t.Matches(header[len(bearer):])
}
