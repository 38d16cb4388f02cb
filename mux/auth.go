package mux

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

const (
	// maxKeyFile bounds what is read as a private key.
	maxKeyFile = 64 << 10
	// agentTimeout bounds one exchange with an agent, which may ask its user or hang.
	agentTimeout = 20 * time.Second
)

// Auth is one way to log in: keys or a password. The zero value is none.
type Auth struct {
	name     string                       // for error messages; never a secret
	signers  func() ([]ssh.Signer, error) // keys; nil if this is a password
	password string
}

// String names the way, for messages.
func (a Auth) String() string { return a.name }

// authMethods returns the library's form of auths. It tries each SSH method once, so all keys are
// one method, in order. A source of keys that fails counts only if no other has one.
func authMethods(auths []Auth) []ssh.AuthMethod {
	var methods []ssh.AuthMethod
	if slices.ContainsFunc(auths, func(a Auth) bool { return a.signers != nil }) {
		methods = append(methods, ssh.PublicKeysCallback(func() (all []ssh.Signer, err error) {
			for _, a := range auths {
				if a.signers == nil {
					continue
				}
				keys, e := a.signers()
				err = errors.Join(err, e)
				all = append(all, keys...)
			}
			if len(all) > 0 {
				return all, nil
			}
			return nil, err
		}))
	}
	for _, a := range auths {
		if a.signers == nil {
			methods = append(methods, ssh.Password(a.password), ssh.KeyboardInteractive(a.answer))
			break
		}
	}
	return methods
}

// answer gives the password to a server that asks for just that interactively (RFC 4256).
func (a Auth) answer(_, _ string, questions []string, echos []bool) ([]string, error) {
	switch {
	case len(questions) == 0:
		return nil, nil
	case len(questions) == 1 && !echos[0]:
		return []string{a.password}, nil
	default:
		return nil, fmt.Errorf("the server asks %d questions; only one for a password can be answered", len(questions))
	}
}

// KeyFile logs in with the private key in a file (OpenSSH or PEM form). The file is read now. A key
// with a passphrase is an error that says so: load it into an agent.
func KeyFile(path string) (Auth, error) {
	f, err := os.Open(path)
	if err != nil {
		return Auth{}, fmt.Errorf("read private key: %w", err)
	}
	defer f.Close()
	pem, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return Auth{}, fmt.Errorf("read private key %s: %w", path, err)
	}
	if len(pem) > maxKeyFile {
		return Auth{}, fmt.Errorf("read private key %s: larger than %d bytes, this is not a private key", path, maxKeyFile)
	}
	signer, err := ssh.ParsePrivateKey(pem)
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		return Auth{}, fmt.Errorf("read private key %s: it has a passphrase: load it into ssh-agent and use the agent", path)
	}
	if err != nil {
		return Auth{}, fmt.Errorf("read private key %s: %w (want the private key, not the .pub file)", path, err)
	}
	return Key(path, signer), nil
}

// Key logs in with a private key that is already in memory. The name is for error messages.
func Key(name string, signer ssh.Signer) Auth {
	return Auth{name: "key " + name, signers: func() ([]ssh.Signer, error) { return []ssh.Signer{signer}, nil }}
}

// Password logs in with a password, also where the server asks for it interactively with one prompt.
func Password(secret string) Auth {
	return Auth{name: "password", password: secret}
}

// Agent logs in with the keys of the ssh-agent at a unix socket, as in SSH_AUTH_SOCK. The agent is
// asked at each login, over a connection that ends with the login and has a deadline.
func Agent(socket string) (Auth, error) {
	if socket == "" {
		return Auth{}, errors.New("use ssh-agent: no socket; is SSH_AUTH_SOCK set?")
	}
	return Auth{
		name: "agent " + socket,
		signers: func() ([]ssh.Signer, error) {
			keys, err := listAgent(socket)
			if err != nil {
				return nil, fmt.Errorf("ask agent %s: %w", socket, err)
			}
			return keys, nil
		},
	}, nil
}

// listAgent returns a signer for each of the agent's keys.
func listAgent(socket string) ([]ssh.Signer, error) {
	var keys []*agent.Key
	err := withAgent(socket, func(a agent.ExtendedAgent) (err error) {
		keys, err = a.List()
		return err
	})
	if err != nil {
		return nil, err
	}
	signers := make([]ssh.Signer, len(keys))
	for i, k := range keys {
		signers[i] = &agentSigner{socket: socket, key: k}
	}
	return signers, nil
}

// withAgent calls fn on a fresh connection to the agent. One connection per exchange keeps nothing
// open between them and lets a deadline end an agent that hangs.
func withAgent(socket string, fn func(agent.ExtendedAgent) error) error {
	nc, err := net.DialTimeout("unix", socket, agentTimeout)
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(agentTimeout)); err != nil {
		return err
	}
	return fn(agent.NewClient(nc))
}

// agentSigner signs with one key of an agent.
type agentSigner struct {
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
	err := withAgent(s.socket, func(a agent.ExtendedAgent) (err error) {
		sig, err = a.SignWithFlags(s.key, data, flags)
		return err
	})
	return sig, err
}
