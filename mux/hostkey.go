package mux

import (
	"bytes"
	"fmt"
	"net"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
)

// HostKeys decides whether a server's host key is the right one. The zero value decides nothing and
// is refused by Dial.
type HostKeys struct {
	// verify returns nil for the right key, and an error that says what to do for any other.
	verify ssh.HostKeyCallback
	// algos returns the algorithms to ask addr for, so that it shows the key we know. May be nil.
	algos func(addr string) []string
}

// PinnedHostKeys accepts exactly the given keys, whatever the address.
func PinnedHostKeys(keys ...ssh.PublicKey) HostKeys {
	return HostKeys{
		verify: func(_ string, _ net.Addr, got ssh.PublicKey) error {
			for _, want := range keys {
				if bytes.Equal(want.Marshal(), got.Marshal()) {
					return nil
				}
			}
			return fmt.Errorf("the server's key is %s %s, none of the %d pinned ones",
				got.Type(), ssh.FingerprintSHA256(got), len(keys))
		},
		algos: func(string) []string {
			var algos []string
			for _, k := range keys {
				algos = append(algos, keyAlgorithms(k.Type())...)
			}
			return algos
		},
	}
}

// KnownHosts accepts the keys that OpenSSH known_hosts files list for the address. The files are
// read now; a line that cannot be read is an error.
func KnownHosts(files ...string) (HostKeys, error) {
	db, err := knownhosts.NewDB(files...)
	if err != nil {
		return HostKeys{}, fmt.Errorf("read known hosts: %w", err)
	}
	check := db.HostKeyCallback()
	return HostKeys{
		verify: func(addr string, remote net.Addr, key ssh.PublicKey) error {
			err := check(addr, remote, key)
			switch {
			case err == nil:
				return nil
			case knownhosts.IsHostUnknown(err):
				return fmt.Errorf("%s is not in %v: its key is %s %s; check it, then add the line %q",
					addr, files, key.Type(), ssh.FingerprintSHA256(key), knownhosts.Line([]string{addr}, key))
			case knownhosts.IsHostKeyChanged(err):
				return fmt.Errorf("%s shows another key than %v has for it: %s %s; if the machine was rebuilt remove the old line, else somebody is in between",
					addr, files, key.Type(), ssh.FingerprintSHA256(key))
			default:
				return err
			}
		},
		algos: db.HostKeyAlgorithms,
	}, nil
}

// algorithms returns what to offer addr, nil for the library's default.
func (h HostKeys) algorithms(addr string) []string {
	if h.algos == nil {
		return nil
	}
	return h.algos(addr)
}

// keyAlgorithms returns the signature algorithms of a key type. RSA keys sign with SHA-2 only
// (RFC 8332): SHA-1 is broken.
func keyAlgorithms(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{keyType}
}
