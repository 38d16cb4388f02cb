package login

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/crypto/ssh"
)

// Auth is one way to log in: keys or a password. The zero value is none.
type Auth struct {
	name     string // for error messages; never a secret
	signers  signers
	password string
	public   ssh.PublicKey // of a single key that is known now
}

// signers returns keys, at each login anew, or what is wrong, or both. It is nil if the way is a password. ctx
// bounds the wait, and what the keys do later.
type signers func(ctx context.Context) ([]ssh.Signer, error)

// String names the way, for messages.
func (a Auth) String() string { return a.name }

// PublicKey returns the key to log in with, nil if it is a password or an agent's.
func (a Auth) PublicKey() ssh.PublicKey { return a.public }

// authMethods returns the library's form of auths. It tries each SSH method once, so all keys are
// one method, in order. note is told how many keys there are, and what is wrong with others.
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
			methods = append(methods, ssh.Password(a.password), ssh.KeyboardInteractive((&interview{password: a.password}).answer))
			break
		}
	}
	return methods
}

// allSigners returns the keys of all auths that have some, and what is wrong with the others. With sha1, RSA
// keys come a second time at the end, to sign with that.
func allSigners(ctx context.Context, auths []Auth, sha1 bool) (all []ssh.Signer, err error) {
	var old []ssh.Signer
	for _, a := range auths {
		if a.signers == nil {
			continue
		}
		keys, e := a.signers(ctx)
		err = errors.Join(err, e)
		for _, key := range keys {
			signer, e := rsaSigner(key, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
			if e != nil {
				err = errors.Join(err, fmt.Errorf("use %s: %w", a, e))
				continue
			}
			all = append(all, signer)
			if !sha1 || signer == key {
				continue
			}
			if signer, e = rsaSigner(key, ssh.KeyAlgoRSA); e == nil {
				old = append(old, signer)
			}
		}
	}
	return append(all, old...), err
}

// rsaSigner returns an RSA key that signs with these algorithms only: the library does not try one after the
// other, and falls back to SHA-1. Other keys it returns as they are.
func rsaSigner(key ssh.Signer, algorithms ...string) (ssh.Signer, error) {
	signer, ok := key.(ssh.AlgorithmSigner)
	switch keyType := key.PublicKey().Type(); {
	case keyType != ssh.KeyAlgoRSA && keyType != ssh.CertAlgoRSAv01, !ok:
		return key, nil
	}
	return ssh.NewSignerWithAlgorithms(signer, algorithms)
}

// maxRounds bounds how often a server may ask something interactively; each answer of ours lets it ask again.
const maxRounds = 16

// interview is one login in which the server asks interactively (RFC 4256).
type interview struct {
	password string
	rounds   int
	told     bool // the password
}

// answer gives the password, once, to a server that asks for just that.
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

// Key logs in with a private key that is already in memory. The name is for error messages.
func Key(name string, signer ssh.Signer) Auth {
	return Auth{
		name:    "key " + name,
		public:  signer.PublicKey(),
		signers: func(context.Context) ([]ssh.Signer, error) { return []ssh.Signer{signer}, nil },
	}
}

// Password logs in with a password, also where the server asks for it interactively with one prompt.
func Password(secret string) Auth {
	return Auth{name: "password", password: secret}
}
