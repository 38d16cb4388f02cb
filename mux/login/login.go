package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
)

// Config says how to log in to one server.
type Config struct {
	// Addr is the host:port that is dialed.
	Addr string
	// User is the account there.
	User string
	// Auth holds the ways to log in: all keys are tried, in order, then the first password.
	Auth []Auth
	// Credentials returns ways to log in that are tried before those of Auth. May be nil.
	Credentials func(ctx context.Context) ([]Auth, error)
	// AllowSHA1 also offers key exchanges and RSA signatures with SHA-1.
	AllowSHA1 bool
	// HostKeys decides which server may answer.
	HostKeys HostKeys
	// HostKeyAlias is the name by which HostKeys looks up the server instead of its address. May be empty.
	HostKeyAlias string
	// MachineID is the identity of the machine, for [FirstUse].
	MachineID string
}

// Login is one login to a server. One handshake calls its methods.
type Login struct {
	cfg      Config
	verifier *verifier

	shown    bool  // the server has shown its host key
	refused  error // the host key, or its record, was refused
	keys     int   // number of keys offered
	keyError error // of the auths that gave no key
}

// Prepare does everything a login needs before the server is reached, because a server waits for a login only for
// a short time: it looks up the host key and gets the credentials. ctx bounds it and means nothing afterwards.
func Prepare(ctx context.Context, cfg Config) (*Login, error) {
	name := cfg.Addr
	if cfg.HostKeyAlias != "" {
		name = net.JoinHostPort(cfg.HostKeyAlias, "22") // known_hosts leaves out this port
	}
	verifier, err := cfg.HostKeys.lookup(ctx, server{cfg.MachineID, name, cfg.Addr, cfg.User})
	if err != nil {
		return nil, err
	}
	if cfg.Credentials != nil {
		more, err := cfg.Credentials(ctx)
		if err != nil {
			return nil, fmt.Errorf("get credentials: %w", err)
		}
		cfg.Auth = slices.Concat(more, cfg.Auth)
	}
	switch {
	case len(cfg.Auth) == 0:
		return nil, errors.New("get credentials: no key and no password was found")
	case slices.ContainsFunc(cfg.Auth, func(a Auth) bool { return a.name == "" }):
		return nil, errors.New("get credentials: an Auth is the zero value: make it by KeyFile, Key, Agent or Password")
	}
	return &Login{cfg: cfg, verifier: verifier}, nil
}

// ClientConfig returns the SSH library's configuration of the login, for one connection. ctx bounds everything that
// the library calls. verified is called once, when the server has shown its host key. If the key was accepted, err is
// nil and policy names the rule that accepted it.
//
// The library calls these functions on the handshake's goroutine, or while that waits for them. It verifies the host
// key again in each later key exchange.
func (l *Login) ClientConfig(
	ctx context.Context, verified func(key ssh.PublicKey, policy string, err error),
) *ssh.ClientConfig {
	config := &ssh.ClientConfig{
		User: l.cfg.User,
		Auth: authMethods(ctx, l.cfg.Auth, l.cfg.AllowSHA1, func(keys int, err error) {
			l.keys, l.keyError = keys, err
		}),
		HostKeyAlgorithms: l.verifier.algorithms(l.cfg.AllowSHA1),
		HostKeyCallback: func(_ string, remote net.Addr, key ssh.PublicKey) error {
			err := l.verifier.check(ctx, remote, key)
			if !l.shown {
				l.shown, l.refused = true, err
				verified(key, l.verifier.by.policy, err)
			}
			return err
		},
		ClientVersion: "SSH-2.0-stepmux",
	}
	config.KeyExchanges = ssh.SupportedAlgorithms().KeyExchanges
	if l.cfg.AllowSHA1 {
		config.KeyExchanges = append(config.KeyExchanges, ssh.InsecureAlgorithms().KeyExchanges...)
	}
	return config
}

// Learn stores the host key if its policy asks for that ([FirstUse]). Call it after a successful login. If it fails,
// close the connection.
func (l *Login) Learn(ctx context.Context) error {
	if learn := l.verifier.by.learn; learn != nil {
		l.refused = learn(ctx, l.verifier.key)
	}
	return l.refused
}

// Explain turns err, the SSH library's error for a failed handshake, into a stage ("handshake", "host key" or
// "login") and a hint about the change to make. If this side refused, reason is the original error: the library's
// keeps only its text.
func (l *Login) Explain(err error) (stage, hint string, reason error) {
	text := err.Error()
	disjoint := (*ssh.AlgorithmNegotiationError)(nil)
	closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
	switch {
	case l.refused != nil:
		return "host key", "", l.refused
	case l.keyError != nil && l.keys == 0:
		return "login", "there is no key to log in with", l.keyError
	case strings.Contains(text, "unable to authenticate"):
		hint = fmt.Sprintf("the server refused %s for user %s: is it in authorized_keys, is the user right?",
			authNames(l.cfg.Auth), l.cfg.User)
		if l.keyError != nil {
			hint += " " + l.keyError.Error()
		}
		return "login", hint, nil
	case l.shown && closed:
		hint = "the server closed the connection during login: see its log"
	case l.shown:
		hint = "after the host key was accepted: see the server's log"
	case errors.As(err, &disjoint):
		return "handshake", "set " + sshdOption(disjoint.What) + " in its sshd_config to one of these, or upgrade it: " +
			strings.Join(disjoint.SupportedAlgorithms, " "), &disjointError{disjoint}
	case closed:
		hint = "the server closed the connection at once: MaxStartups or a ban may be at work, or this is not an SSH port"
	default:
		hint = "is " + l.cfg.Addr + " an SSH port?"
	}
	return "handshake", hint, nil
}

// disjointError is the error for a server that shares no algorithm with this side.
type disjointError struct{ *ssh.AlgorithmNegotiationError }

func (e *disjointError) Error() string {
	return fmt.Sprintf("no common algorithm for %s: the server offers only %.*q", e.What, maxOffer,
		strings.Join(e.RequestedAlgorithms, " "))
}

// Unwrap returns the library's error.
func (e *disjointError) Unwrap() error { return e.AlgorithmNegotiationError }

// maxOffer bounds how much of a server's algorithms an error quotes, in characters.
const maxOffer = 160

// sshdOption returns the option of sshd_config for the algorithms of a purpose, in the library's words.
func sshdOption(purpose string) string {
	switch {
	case purpose == "host key":
		return "HostKeyAlgorithms (and a HostKey of the type)"
	case strings.HasSuffix(purpose, "cipher"):
		return "Ciphers"
	case strings.HasSuffix(purpose, "MAC"):
		return "MACs"
	default:
		return "KexAlgorithms"
	}
}

func authNames(auths []Auth) string {
	names := make([]string, len(auths))
	for i, a := range auths {
		names[i] = a.String()
	}
	return strings.Join(names, ", ")
}
