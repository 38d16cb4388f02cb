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

// HostKeys is a policy for host keys: it decides whether a server's key is the right one. It is a chain of rules.
// Each rule accepts a key, refuses it, or passes it to the next; a key that the last rule passes on is refused. The
// zero value has no rules; mux.Dial refuses it. HostKeys is safe for concurrent use.
type HostKeys struct {
	rules    []hostKeyRule
	warnings []string
}

// hostKeyRule is one rule of a policy.
type hostKeyRule struct {
	// lookup is called once for each connection, before it is made.
	lookup func(context.Context, server) (knowledge, error)
	// forget drops the keys that were learned for machines. It is nil if the rule does not learn.
	forget func(ctx context.Context, machines ...string) error
}

// policyOf returns a policy of one rule that does not learn.
func policyOf(lookup func(context.Context, server) (knowledge, error)) HostKeys {
	return HostKeys{rules: []hostKeyRule{{lookup: lookup}}}
}

// server is a server whose host key is verified.
type server struct {
	machine string // its identity; may be empty
	name    string // host:port by which its key is looked up
	addr    string // host:port that is dialed
	user    string
}

// knowledge is the answer of one rule for one server.
type knowledge struct {
	// policy names the rule and its source in messages.
	policy string
	// types are the types of the known keys, the preferred one first.
	types []string
	// authority is true if a certificate authority is known for the server.
	authority bool
	// veto returns an error for a key that no rule may accept. May be nil.
	veto func(ssh.PublicKey) error
	// check returns nil to accept the key and errNotKnown to pass it to the next rule. For a wrong key it returns an
	// error with advice.
	check func(context.Context, net.Addr, ssh.PublicKey) error
	// learn is called when the login with a key that check accepted has succeeded. May be nil.
	learn func(context.Context, ssh.PublicKey) error
}

// errNotKnown is wrapped by the errors of rules that pass a key on.
var errNotKnown = errors.New("not known")

// notKnown is the reason why a rule passes a key on, and how to make the rule accept the key.
type notKnown string

func (e notKnown) Error() string { return string(e) }
func (e notKnown) Unwrap() error { return errNotKnown }

// IsZero reports whether h has no rules.
func (h HostKeys) IsZero() bool { return len(h.rules) == 0 }

// Warnings returns texts about lines that [KnownHosts] passed over when it was called, as they cannot be read.
func (h HostKeys) Warnings() []string { return slices.Clone(h.warnings) }

// FirstOf joins policies into one: the first that accepts or refuses a key decides. A key that a known_hosts file
// marks as @revoked is refused wherever the file stands in the chain.
func FirstOf(policies ...HostKeys) HostKeys {
	var all HostKeys
	for _, p := range policies {
		all.rules = append(all.rules, p.rules...)
		all.warnings = append(all.warnings, p.warnings...)
	}
	return all
}

// Forget drops the key that was learned for a machine, named by its mux.Config.MachineID. Only [FirstUse] learns
// keys. ctx bounds the wait for other processes that use the same file.
func (h HostKeys) Forget(ctx context.Context, machine string) error {
	var err error
	for _, r := range h.rules {
		if r.forget != nil {
			err = errors.Join(err, r.forget(ctx, machine))
		}
	}
	return err
}

// lookup asks all rules for the keys of a server.
func (h HostKeys) lookup(ctx context.Context, s server) (*verifier, error) {
	v := &verifier{}
	for _, r := range h.rules {
		k, err := r.lookup(ctx, s)
		if err != nil {
			return nil, err
		}
		v.known = append(v.known, k)
	}
	return v, nil
}

// verifier verifies the host key of one connection.
type verifier struct {
	known []knowledge

	// key is the accepted key; by names the rule that accepted it. The first check sets both while the handshake
	// waits; later they are only read.
	key ssh.PublicKey
	by  knowledge
}

// algorithms returns the host-key algorithms to offer. Those of the known keys come first, so that the server shows
// one of them. The others follow, so that a key that changed its type is reported as changed.
func (v *verifier) algorithms(sha1 bool) []string {
	var algos []string
	add := func(more ...string) {
		for _, a := range more {
			if !slices.Contains(algos, a) {
				algos = append(algos, a)
			}
		}
	}
	// A certificate is of use only where an authority is known.
	isCert := func(algo string) bool { return strings.Contains(algo, "-cert-v01@") }
	supported := ssh.SupportedAlgorithms().HostKeys
	for _, k := range v.known {
		for _, a := range supported {
			if k.authority && isCert(a) {
				add(a)
			}
		}
		for _, t := range k.types {
			add(keyAlgorithms(t, sha1)...)
		}
	}
	add(slices.DeleteFunc(supported, isCert)...) // a fresh slice of the library's
	if sha1 {
		add(ssh.KeyAlgoRSA)
	}
	return algos
}

// check decides about a key. The SSH library calls it for each key exchange of the connection.
func (v *verifier) check(ctx context.Context, remote net.Addr, key ssh.PublicKey) error {
	if v.key != nil {
		if sameKey(v.key, key) {
			return nil
		}
		return errors.New("the server shows another key than when the connection was made")
	}
	for _, k := range v.known {
		if k.veto != nil {
			if err := k.veto(key); err != nil {
				return err
			}
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

// keyAlgorithms returns the signature algorithms of a key type. RSA keys sign with SHA-2 (RFC 8332), and with SHA-1
// only if sha1 is set.
func keyAlgorithms(keyType string, sha1 bool) []string {
	switch {
	case keyType == ssh.KeyAlgoRSA && sha1:
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
	case keyType == ssh.KeyAlgoRSA:
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{keyType}
}

func sameKey(a, b ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), b.Marshal()) }

// plainKey returns the key, or the key that a certificate is for.
func plainKey(key ssh.PublicKey) ssh.PublicKey {
	if cert, ok := key.(*ssh.Certificate); ok {
		return cert.Key
	}
	return key
}

// describe names a key in a message.
func describe(key ssh.PublicKey) string {
	if cert, ok := key.(*ssh.Certificate); ok {
		return fmt.Sprintf("%s %s (certificate %.200q by %s)", cert.Key.Type(), ssh.FingerprintSHA256(cert.Key),
			cert.KeyId, ssh.FingerprintSHA256(cert.SignatureKey))
	}
	return key.Type() + " " + ssh.FingerprintSHA256(key)
}
