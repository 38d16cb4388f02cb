package login

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/crypto/ssh"
)

// Auth is one way to log in: keys or a password. [KeyFile], [LockedKeyFile], [Key], [Agent], [ParseIdentity] and
// [Password] make one; the zero value is not valid.
type Auth struct {
	name     string // for error messages; never a secret
	signers  signers
	password string
	public   ssh.PublicKey // if there is one key and it is known before the login
}

// signers returns the keys for one login, and an error for those that it could not get; it may return both. It is nil
// for a password. ctx bounds the call and the use of the keys.
type signers func(ctx context.Context) ([]ssh.Signer, error)

// String names the way to log in, for messages. It holds no secret.
func (a Auth) String() string { return a.name }

// PublicKey returns the key to log in with. It returns nil for a password and for an agent's keys.
func (a Auth) PublicKey() ssh.PublicKey { return a.public }

// authMethods converts auths to the SSH library's form. The library tries each SSH method once, so all keys together
// are one method, in order. note gets the number of keys, and the errors of auths that gave no key.
func authMethods(ctx context.Context, auths []Auth, sha1 bool, note func(keys int, err error)) []ssh.AuthMethod {
	var methods []ssh.AuthMethod
	if slices.ContainsFunc(auths, func(a Auth) bool { return a.signers != nil }) {
		methods = append(methods, ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
			all, err := allSigners(ctx, auths, sha1)
			note(len(all), err)
			if len(all) > 0 {
				return all, nil
			}
			return nil, err
		}))
	}
	for _, a := range auths {
		if a.signers == nil {
			ask := &interview{password: a.password}
			methods = append(methods, ssh.Password(a.password), ssh.KeyboardInteractive(ask.answer))
			break
		}
	}
	return methods
}

// allSigners returns the keys of all auths, and the errors of auths that gave no key. With sha1, RSA keys appear a
// second time at the end, to sign with SHA-1.
func allSigners(ctx context.Context, auths []Auth, sha1 bool) (all []ssh.Signer, err error) {
	var old []ssh.Signer
	for _, a := range auths {
		if a.signers == nil {
			continue
		}
		keys, e := a.signers(ctx)
		err = errors.Join(err, e)
		for _, key := range keys {
			signer, isRSA, e := rsaSigner(key, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
			if e != nil {
				err = errors.Join(err, fmt.Errorf("use %s: %w", a, e))
				continue
			}
			all = append(all, signer)
			if !sha1 || !isRSA {
				continue
			}
			if signer, _, e = rsaSigner(key, ssh.KeyAlgoRSA); e == nil {
				old = append(old, signer)
			}
		}
	}
	return append(all, old...), err
}

// rsaSigner restricts an RSA key to these algorithms: the library does not try one after the other, and falls back to
// SHA-1. Other keys are returned unchanged.
func rsaSigner(key ssh.Signer, algorithms ...string) (_ ssh.Signer, isRSA bool, err error) {
	signer, ok := key.(ssh.AlgorithmSigner)
	if keyType := key.PublicKey().Type(); !ok || keyType != ssh.KeyAlgoRSA && keyType != ssh.CertAlgoRSAv01 {
		return key, false, nil
	}
	restricted, err := ssh.NewSignerWithAlgorithms(signer, algorithms)
	return restricted, true, err
}

// maxRounds bounds how often a server may ask questions in one login: each answer lets it ask again.
const maxRounds = 16

// interview is one login in which the server asks interactively (RFC 4256).
type interview struct {
	password string
	rounds   int
	told     bool // the password was given
}

// answer gives the password once, to a server that asks exactly one question without echo.
func (i *interview) answer(_, _ string, questions []string, echos []bool) ([]string, error) {
	i.rounds++
	switch {
	case i.rounds > maxRounds:
		return nil, fmt.Errorf("the server asks more than %d times", maxRounds)
	case len(questions) == 0:
		return nil, nil
	case len(questions) > 1 || echos[0]:
		return nil, fmt.Errorf("the server asks %d questions; only one for a password can be answered", len(questions))
	case i.told:
		return nil, errors.New("the server asks again after the password")
	default:
		i.told = true
		return []string{i.password}, nil
	}
}

// Key logs in with a private key in memory. name stands for it in error messages.
func Key(name string, signer ssh.Signer) Auth {
	return Auth{
		name:    "key " + name,
		public:  signer.PublicKey(),
		signers: func(context.Context) ([]ssh.Signer, error) { return []ssh.Signer{signer}, nil },
	}
}

// Password logs in with a password. It also answers a server that asks for it interactively, by a single prompt.
func Password(secret string) Auth { return Auth{name: "password", password: secret} }
