package login

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// HostKeys decides whether a server's host key is the right one. It is a chain of rules, each of which
// accepts a key, refuses it, or leaves it to the next; a key that is left by the last is refused. The zero
// value has no rules and is refused by Dial. It is safe for concurrent use.
type HostKeys struct{ rules []hostKeyRule }

// hostKeyRule says what a rule knows of a server, once for each connection.
type hostKeyRule interface {
	lookup(context.Context, server) (knowledge, error)
	// forget drops what was learned of a machine that is gone.
	forget(ctx context.Context, machine string) error
}

// server is who a host key is asked of.
type server struct {
	machine string // its identity, empty if it has none
	name    string // host:port that its key is looked up by
	addr    string // host:port that is dialed
	user    string
}

// knowledge is what one rule knows of one server.
type knowledge struct {
	// policy names the rule, and where it has its knowledge from, for people.
	policy string
	// types are those of the keys it knows, the first preferred.
	types []string
	// authority says that it knows one that signs certificates for the server.
	authority bool
	// veto returns an error for a key that is to be refused whatever other rules say. May be nil.
	veto func(ssh.PublicKey) error
	// check answers with nil for the right key, errNotKnown to leave it to the next rule, and an error that
	// says what to do for any other.
	check func(context.Context, net.Addr, ssh.PublicKey) error
	// learn is called when the login has succeeded with a key that check accepted. May be nil.
	learn func(context.Context, ssh.PublicKey) error
}

// errNotKnown is wrapped by the errors of rules that have no answer.
var errNotKnown = errors.New("not known")

// notKnown says why a rule has no answer, and what would give it one.
type notKnown string

func (e notKnown) Error() string { return string(e) }
func (e notKnown) Unwrap() error { return errNotKnown }

// IsZero reports whether h has no rules.
func (h HostKeys) IsZero() bool { return len(h.rules) == 0 }

// FirstOf is the chain of all rules of the policies, in order: the first answer counts. But a key that a
// known_hosts file has as @revoked is refused wherever in the chain the file stands.
func FirstOf(policies ...HostKeys) HostKeys {
	var all HostKeys
	for _, p := range policies {
		all.rules = append(all.rules, p.rules...)
	}
	return all
}

// Forget drops what was learned of a machine that is gone, by its Config.MachineID. Only [FirstUse] learns.
// ctx bounds the wait for other processes that use the same file.
func (h HostKeys) Forget(ctx context.Context, machine string) error {
	var err error
	for _, r := range h.rules {
		err = errors.Join(err, r.forget(ctx, machine))
	}
	return err
}

// lookup asks all rules what they know of a server.
func (h HostKeys) lookup(ctx context.Context, s server) (*verifier, error) {
	v := &verifier{server: s}
	for _, r := range h.rules {
		k, err := r.lookup(ctx, s)
		if err != nil {
			return nil, err
		}
		v.known = append(v.known, k)
	}
	return v, nil
}

// verifier is the check of one connection's host key.
type verifier struct {
	server server
	known  []knowledge

	// key is the one that was accepted, and by is whose answer that was. They are set by the first check,
	// which the handshake waits for, and only read later.
	key ssh.PublicKey
	by  knowledge
}

// algorithms returns what to ask the server for: first what goes with the keys that are known, so that it
// shows one of them, then the others, so that a changed key is found to be one.
func (v *verifier) algorithms(sha1 bool) []string {
	var algos []string
	supported := ssh.SupportedAlgorithms().HostKeys
	for _, k := range v.known {
		if k.authority {
			for _, a := range supported {
				if isCertAlgorithm(a) {
					algos = append(algos, a)
				}
			}
		}
		for _, t := range k.types {
			algos = append(algos, keyAlgorithms(t, sha1)...)
		}
	}
	for _, a := range supported {
		// A certificate is of use only to who knows an authority.
		if !isCertAlgorithm(a) {
			algos = append(algos, a)
		}
	}
	if sha1 {
		algos = append(algos, ssh.KeyAlgoRSA)
	}
	return unique(algos)
}

// check decides on a key. The SSH library calls it for each key exchange of the connection.
func (v *verifier) check(ctx context.Context, remote net.Addr, key ssh.PublicKey) error {
	if v.key != nil {
		if bytes.Equal(v.key.Marshal(), key.Marshal()) {
			return nil
		}
		return errors.New("the server shows another key than when the connection was made")
	}
	for _, k := range v.known {
		if k.veto == nil {
			continue
		}
		if err := k.veto(key); err != nil {
			return err
		}
	}
	var reasons []string
	for _, k := range v.known {
		err := k.check(ctx, remote, key)
		if err == nil {
			v.key, v.by = key, k
			return nil
		}
		if !errors.Is(err, errNotKnown) {
			return err
		}
		reasons = append(reasons, err.Error())
	}
	return errors.New(strings.Join(reasons, "; "))
}

// learn lets the rule that accepted the key remember it, now that the login has succeeded.
func (v *verifier) learn(ctx context.Context) error {
	if v.by.learn == nil {
		return nil
	}
	return v.by.learn(ctx, v.key)
}

// keyAlgorithms returns the signature algorithms of a key type. RSA keys sign with SHA-2 (RFC 8332) unless
// sha1 is asked for too.
func keyAlgorithms(keyType string, sha1 bool) []string {
	switch {
	case keyType == ssh.KeyAlgoRSA && sha1:
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
	case keyType == ssh.KeyAlgoRSA:
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	case keyType == ssh.InsecureKeyAlgoDSA: //nolint:staticcheck // it is named to be left out
		return nil
	}
	return []string{keyType}
}

func isCertAlgorithm(algo string) bool { return strings.Contains(algo, "-cert-v01@") }

// unique returns all without repetitions.
func unique(all []string) []string {
	var out []string
	for _, a := range all {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// plainKey returns the key itself, also of a certificate.
func plainKey(key ssh.PublicKey) ssh.PublicKey {
	if cert, ok := key.(*ssh.Certificate); ok {
		return cert.Key
	}
	return key
}

// describe names a key in a message.
func describe(key ssh.PublicKey) string {
	if cert, ok := key.(*ssh.Certificate); ok {
		return fmt.Sprintf("%s %s (certificate %q by %s)", cert.Key.Type(), ssh.FingerprintSHA256(cert.Key), cert.KeyId, ssh.FingerprintSHA256(cert.SignatureKey))
	}
	return key.Type() + " " + ssh.FingerprintSHA256(key)
}
