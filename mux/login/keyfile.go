package login

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/boundedfile"
)

// maxKeyFile bounds the file of a private key or a certificate.
const maxKeyFile = 64 << 10

// KeyFile logs in with the private key in a file (OpenSSH or PEM form), which it reads at once. Like ssh, it refuses
// a file that belongs to this user and that others may read. For a key with a passphrase the error wraps a
// [*ssh.PassphraseMissingError]: use [LockedKeyFile], or load the key into an agent.
func KeyFile(path string) (Auth, error) { return keyFile(path, nil) }

// LockedKeyFile is KeyFile for a key that is protected by a passphrase.
func LockedKeyFile(path string, passphrase []byte) (Auth, error) {
	if len(passphrase) == 0 {
		return Auth{}, fmt.Errorf("read private key %s: the passphrase is empty", path)
	}
	return keyFile(path, passphrase)
}

func keyFile(path string, passphrase []byte) (Auth, error) {
	pem, err := ReadKeyFile(path)
	if err != nil {
		return Auth{}, err
	}
	signer, err := parseKey(pem, passphrase)
	if err != nil {
		return Auth{}, fmt.Errorf("read private key %s: %w", path, err)
	}
	return Key(path, signer), nil
}

// ReadKeyFile reads the file of a private key. Like ssh, it refuses a file that belongs to this user and that others
// may read.
func ReadKeyFile(path string) ([]byte, error) {
	pem, err := boundedfile.Read(path, maxKeyFile)
	switch {
	case errors.Is(err, boundedfile.ErrTooLarge):
		return nil, fmt.Errorf("read private key: %w: it is not a private key", err)
	case err != nil:
		return nil, fmt.Errorf("read private key: %w", err)
	}
	_, _, _, _, notPublic := ssh.ParseAuthorizedKey(pem)
	if notPublic == nil && !bytes.Contains(pem, []byte("-----BEGIN ")) { // a private key may be followed by its public one
		return nil, fmt.Errorf("read private key %s: it is a public key; name the private key, %s",
			path, strings.TrimSuffix(path, ".pub"))
	}
	if err := checkPrivate(path); err != nil {
		return nil, fmt.Errorf("read private key %s: %w", path, err)
	}
	return pem, nil
}

// checkPrivate returns an error if the file belongs to this user and others may read it.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(stat.Uid) == os.Getuid() && info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("others on this machine may read it (mode %04o): chmod 600 it", info.Mode().Perm())
	}
	return nil
}

// parseKey reads a private key. A passphrase is used only if the key has one.
func parseKey(pem, passphrase []byte) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(pem)
	missing := (*ssh.PassphraseMissingError)(nil)
	switch locked := errors.As(err, &missing); {
	case locked && passphrase == nil:
		return nil, fmt.Errorf("the key has a passphrase: name a command that prints it (--passphrase-command), "+
			"or load it into ssh-agent and use the agent: %w", err)
	case locked:
		if signer, err = ssh.ParsePrivateKeyWithPassphrase(pem, passphrase); err != nil {
			return nil, fmt.Errorf("the passphrase does not open it: %w", err)
		}
	case err != nil:
		return nil, fmt.Errorf("%w (want the private key, not the .pub file)", err)
	}
	return signer, nil
}

// ParseIdentity logs in with an identity as issuers of short-lived keys print it: a private key without a passphrase
// in OpenSSH or PEM form and, before or after it, an optional certificate for it in the form of a -cert.pub file.
// name stands for it in error messages.
func ParseIdentity(name string, text []byte) (Auth, error) {
	signer, err := parseIdentity(text)
	if err != nil {
		return Auth{}, fmt.Errorf("read identity of %s: %w", name, err)
	}
	return Key(name, signer), nil
}

// parseIdentity returns the key in text, with its certificate if there is one.
func parseIdentity(text []byte) (ssh.Signer, error) {
	signer, err := parseKey(text, nil)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte("-cert-v01@openssh.com ")) {
			cert, err := parseCertificate(line)
			if err != nil {
				return nil, err
			}
			return certify(signer, cert)
		}
	}
	return signer, nil
}

// WithCertificate adds a user certificate for one of a's keys, from a file as ssh-keygen -s writes it. The
// certificate is tried before the plain key. The file is read at once, so that a wrong file is reported early, and
// again at each login, because it may be renewed in place. A certificate that has expired or is for another key is
// left out; the error of a refused login then mentions it.
func (a Auth) WithCertificate(file string) (Auth, error) {
	if a.signers == nil {
		return Auth{}, fmt.Errorf("read certificate %s: a %s cannot have one", file, a.name)
	}
	if _, err := readCertificate(file); err != nil {
		return Auth{}, err
	}
	plain := a.signers
	a.name += " with certificate " + file
	a.signers = func(ctx context.Context) ([]ssh.Signer, error) {
		keys, err := plain(ctx)
		cert, certErr := readCertificate(file)
		if certErr != nil || len(keys) == 0 {
			return keys, errors.Join(err, certErr)
		}
		i := slices.IndexFunc(keys, func(k ssh.Signer) bool { return sameKey(k.PublicKey(), cert.Key) })
		if i < 0 {
			certErr = fmt.Errorf("use certificate %s: it is for another key, %s", file, describe(cert.Key))
			return keys, errors.Join(err, certErr)
		}
		certified, certErr := certify(keys[i], cert)
		if certErr != nil {
			return keys, errors.Join(err, fmt.Errorf("use certificate %s: %w", file, certErr))
		}
		return append([]ssh.Signer{certified}, keys...), err
	}
	return a, nil
}

func readCertificate(file string) (*ssh.Certificate, error) {
	text, err := boundedfile.Read(file, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	cert, err := parseCertificate(text)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", file, err)
	}
	return cert, nil
}

func parseCertificate(text []byte) (*ssh.Certificate, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		return nil, err
	}
	cert, ok := key.(*ssh.Certificate)
	switch {
	case !ok:
		return nil, fmt.Errorf("the file is a plain %s key: want a certificate, as ssh-keygen -s makes it", key.Type())
	case cert.CertType != ssh.UserCert:
		return nil, errors.New("the file is a certificate of a host: want a user's")
	}
	return cert, nil
}

// certify joins a key and its certificate. An expired certificate is an error here: the server would refuse it
// without giving a reason.
func certify(key ssh.Signer, cert *ssh.Certificate) (ssh.Signer, error) {
	if end := cert.ValidBefore; end != ssh.CertTimeInfinity && uint64(time.Now().Unix()) >= end {
		at := time.Unix(int64(min(end, 1<<40)), 0).UTC() // bounded
		return nil, fmt.Errorf("certificate %q expired at %s: get a new one", cert.KeyId, at.Format(time.RFC3339))
	}
	return ssh.NewCertSigner(cert, key)
}
