package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// agentTimeout bounds one exchange with an agent, which may wait for its user or hang.
var agentTimeout = 20 * time.Second

// Agent logs in with the keys of the ssh-agent at a unix socket (SSH_AUTH_SOCK). If only names keys, the agent's
// other keys are not tried: a server counts attempts (MaxAuthTries). The agent is asked at each login, over
// connections that have a deadline and are closed when the login ends.
func Agent(socket string, only ...ssh.PublicKey) (Auth, error) {
	if socket == "" {
		return Auth{}, errors.New("use ssh-agent: no socket; is SSH_AUTH_SOCK set?")
	}
	return Auth{
		name: "agent " + socket,
		signers: func(ctx context.Context) ([]ssh.Signer, error) {
			keys, err := listAgent(ctx, socket, only)
			if err != nil {
				return nil, fmt.Errorf("ask agent %s: %w", socket, err)
			}
			if len(keys) == 0 {
				return nil, fmt.Errorf("ask agent %s: it has none of the keys to log in with: see ssh-add -l", socket)
			}
			return keys, nil
		},
	}, nil
}

// listAgent returns a signer for each of the agent's keys. If only is not empty, for each key in it that the agent
// has.
func listAgent(ctx context.Context, socket string, only []ssh.PublicKey) ([]ssh.Signer, error) {
	var keys []*agent.Key
	err := withAgent(ctx, socket, func(a agent.ExtendedAgent) (err error) {
		keys, err = a.List()
		return err
	})
	if err != nil {
		return nil, err
	}
	var signers []ssh.Signer
	for _, k := range keys {
		key := plainAgentKey(k)
		if len(only) == 0 || slices.ContainsFunc(only, func(o ssh.PublicKey) bool { return sameKey(o, key) }) {
			signers = append(signers, &agentSigner{ctx: ctx, socket: socket, key: k})
		}
	}
	return signers, nil
}

// plainAgentKey returns the key, or the key that a certificate is for.
func plainAgentKey(k *agent.Key) ssh.PublicKey {
	key, err := ssh.ParsePublicKey(k.Blob)
	if err != nil {
		return k // of a type the library does not know
	}
	return plainKey(key)
}

// withAgent calls fn on a new connection to the agent. With one connection for each exchange, nothing stays open
// between them, and closing it ends an exchange at its deadline or with ctx.
func withAgent(ctx context.Context, socket string, fn func(agent.ExtendedAgent) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, agentTimeout, fmt.Errorf("no answer within %v", agentTimeout))
	defer cancel()
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	err = fn(agent.NewClient(nc))
	if !stop() && err != nil {
		err = context.Cause(ctx)
	}
	nc.Close()
	return err
}

// agentSigner signs with one key of an agent.
type agentSigner struct {
	ctx    context.Context // of the login
	socket string
	key    *agent.Key
}

func (s *agentSigner) PublicKey() ssh.PublicKey { return s.key }

func (s *agentSigner) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	return s.SignWithAlgorithm(rand, data, "")
}

// SignWithAlgorithm lets RSA keys sign with SHA-2 (RFC 8332).
func (s *agentSigner) SignWithAlgorithm(_ io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	var flags agent.SignatureFlags
	switch algorithm {
	case ssh.KeyAlgoRSASHA256, ssh.CertAlgoRSASHA256v01:
		flags = agent.SignatureFlagRsaSha256
	case ssh.KeyAlgoRSASHA512, ssh.CertAlgoRSASHA512v01:
		flags = agent.SignatureFlagRsaSha512
	}
	var sig *ssh.Signature
	err := withAgent(s.ctx, s.socket, func(a agent.ExtendedAgent) (err error) {
		sig, err = a.SignWithFlags(s.key, data, flags)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("let agent %s sign: %w", s.socket, err)
	}
	return sig, nil
}
